// Corpora in Parquet, web archives and xz, written by other programs, and what is left of damaged
// ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "data/corpora/record_reader.h"
#include "data/corpora/tokenize_job.h"
#include "data/stores/token_store.h"
#include "data/tokenizer_training/corpus_pre_tokens.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/task_data.h"
#include "support/compress.h"
#include "support/duckdb_files.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using RowJson = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CorpusFormats : public testing::Test {
 protected:
  struct Corpus {
    std::vector<std::string> records;
    std::vector<SkippedInput> skipped;
    std::vector<RecordOffset> ends;  // of the records

    std::vector<std::string> texts(const char* key = "text") const {
      std::vector<std::string> all;
      for (const std::string& record : records) all.push_back(RowJson::parse(record).at(key));
      return all;
    }
  };
  Corpus read(const fs::path& file, RecordReader::Options options = {}, RecordOffset from = {}) {
    RecordReader reader(file, from, options);
    Corpus corpus;
    for (Record record; reader.next(record);) {
      corpus.records.emplace_back(record.bytes);
      corpus.ends.push_back(reader.position());
    }
    corpus.skipped = reader.take_skipped();
    EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
    return corpus;
  }
  Corpus read_skipping(const fs::path& file) { return read(file, {.skip_damaged = true}); }
  std::string complaint(const fs::path& file, const RecordReader::Options& options = {}) {
    const std::string text = user_error_of([&] { read(file, options); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 600u) << text;
    return text;
  }
  // A job that continues from any record reads the rest.
  void expect_resumable(const fs::path& file, const RecordReader::Options& options,
                        const Corpus& whole) {
    for (std::size_t at = 0; at < whole.records.size(); at += 1 + whole.records.size() / 13) {
      const Corpus rest = read(file, options, whole.ends[at]);
      EXPECT_EQ(rest.records,
                std::vector(whole.records.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                            whole.records.end()))
          << at;
    }
  }
  void shell(const std::string& command) {
    ASSERT_EQ(std::system(("cd '" + directory_.path().string() + "' && " + command).c_str()), 0)
        << command;
  }
  std::string content(const char* name) {
    std::ifstream file(directory_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void copy_to(const char* name, const std::string& select, const std::string& options) {
    execute_in_duckdb(
        fmt::format("COPY ({}) TO '{}' ({})", select, (directory_ / name).string(), options));
  }
  TemporaryDirectory directory_;
};

// ---- Parquet

TEST_F(CorpusFormats, RowsAreObjectsWithTheirColumns) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet",
          "SELECT i AS id, 'text ' || i AS text, {'lang': 'fi', 'text': chr(10) || '\"' || i} AS "
          "meta, [{'role': 'user', 'content': 'q' || i}] AS messages, CASE WHEN i % 7 = 0 THEN "
          "NULL ELSE 'x' END AS maybe, 'raw'::BLOB AS bytes FROM range(5000) t(i)",
          "FORMAT parquet, ROW_GROUP_SIZE 2048");
  const Corpus all = read(directory_ / "a.parquet");
  ASSERT_EQ(all.records.size(), 5000u);
  for (int i = 0; i < 5000; i += 499) {
    const RowJson expected = {
        {"id", i},
        {"text", fmt::format("text {}", i)},
        {"meta", {{"lang", "fi"}, {"text", fmt::format("\n\"{}", i)}}},
        {"messages", {{{"role", "user"}, {"content", fmt::format("q{}", i)}}}},
        {"maybe", i % 7 == 0 ? RowJson() : RowJson("x")},
        {"bytes", "raw"}};
    EXPECT_EQ(RowJson::parse(all.records[static_cast<std::size_t>(i)]), expected);
  }
  RecordReader::Options nested;
  nested.keys = {"meta.text", "id"};
  const Corpus some = read(directory_ / "a.parquet", nested);
  EXPECT_EQ(some.records[4321], R"({"meta.text":"\n\"4321","id":4321})");
  expect_resumable(directory_ / "a.parquet", nested, some);
}

TEST_F(CorpusFormats, ColumnsThatAreMissingAreNamed) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT 'x' AS body, {'lang': 'fi'} AS meta", "FORMAT parquet");
  for (const char* key : {"text", "meta.text", "", "\"", "body.x"}) {
    RecordReader::Options options;
    options.keys = {key};
    options.skip_damaged = true;  // it is no damage
    EXPECT_THAT(complaint(directory_ / "a.parquet", options),
                AllOf(HasSubstr(fmt::format("no column '{}'", key)), HasSubstr("body, meta")));
  }
}

// The name is no pattern, no SQL and no address.
TEST_F(CorpusFormats, FilesHaveAnyName) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT 'x' AS text", "FORMAT parquet");
  for (const char* name : {"it's.parquet", "a*b[1].parquet", "s3:.parquet", "-.parquet"}) {
    fs::copy_file(directory_ / "a.parquet", directory_ / name);
    EXPECT_THAT(read(directory_ / name).texts(), ElementsAre("x")) << name;
  }
  fs::copy_file(directory_ / "a.parquet", directory_ / "a.txt");
  EXPECT_THAT(complaint(directory_ / "a.txt"), HasSubstr("if its name ends in .parquet"));
}

// Files that only differ in their text have one descriptor, size and time, one after the other.
TEST_F(CorpusFormats, NothingOfAnEarlierFileIsReadAgain) {
  KINTSUGI_NEEDS_DUCKDB();
  const auto time = fs::file_time_type::clock::now();
  for (const char* text : {"one", "two", "six"}) {
    copy_to("a.parquet", fmt::format("SELECT '{}' AS text FROM range(100)", text),
            "FORMAT parquet, COMPRESSION uncompressed");
    fs::last_write_time(directory_ / "a.parquet", time);
    EXPECT_THAT(read(directory_ / "a.parquet").texts(), testing::Each(text));
  }
}

TEST_F(CorpusFormats, OneTextThatIsNotUtf8CostsOneRow) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT 'number ' || i || ' of many' AS text FROM range(20000) t(i)",
          "FORMAT parquet, ROW_GROUP_SIZE 6144, COMPRESSION uncompressed");
  std::string bytes = content("a.parquet");
  bytes[bytes.find("number 9001 of") + 3] = '\xFF';
  const fs::path bad = directory_.write("bad.parquet", bytes);
  EXPECT_THAT(complaint(bad), AllOf(HasSubstr("bad.parquet cannot be read at row 9002 ("),
                                    testing::Not(HasSubstr("/proc/"))));
  const Corpus rest = read_skipping(bad);
  EXPECT_EQ(rest.records.size(), 19999u);
  ASSERT_EQ(rest.skipped.size(), 1u);
  EXPECT_EQ(rest.skipped[0].begin, 9002u);
  EXPECT_EQ(rest.skipped[0].documents, 1);
  EXPECT_THAT(to_string(rest.skipped[0]),
              AllOf(HasSubstr("bad.parquet, rows 9002 to 9002: "), HasSubstr("; 1 document lost")));
}

TEST_F(CorpusFormats, ADamagedRowGroupCostsItsRows) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT i AS id, md5(i::VARCHAR) AS text FROM range(20000) t(i)",
          "FORMAT parquet, ROW_GROUP_SIZE 4096, COMPRESSION zstd");
  std::string bytes = content("a.parquet");
  std::mt19937 random(1);
  for (std::size_t i = 0; i < 3000; ++i) bytes[bytes.size() / 2 + i] = static_cast<char>(random());
  const Corpus rest = read_skipping(directory_.write("bad.parquet", bytes));
  ASSERT_FALSE(rest.skipped.empty());
  std::int64_t lost = 0;
  for (const SkippedInput& one : rest.skipped) lost += one.documents.value_or(0);
  EXPECT_EQ(std::ssize(rest.records) + lost, 20000) << "each row is read or reported";
  EXPECT_LE(lost, 4096);
  EXPECT_EQ(RowJson::parse(rest.records.back())["id"], 19999);
}

TEST_F(CorpusFormats, FilesWithoutAFooterAreLost) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT 'x' AS text FROM range(1000)", "FORMAT parquet");
  const std::string bytes = content("a.parquet");
  for (const std::string& damaged : {std::string(), std::string("{\"text\": \"a\"}\n"),
                                     bytes.substr(0, bytes.size() / 2), bytes + "x"}) {
    const fs::path file = directory_.write("bad.parquet", damaged);
    EXPECT_THAT(complaint(file), HasSubstr("bad.parquet cannot be read as Parquet: "));
    const Corpus rest = read_skipping(file);
    EXPECT_TRUE(rest.records.empty());
    ASSERT_EQ(rest.skipped.size(), 1u);
    EXPECT_FALSE(rest.skipped[0].documents.has_value());
  }
}

TEST_F(CorpusFormats, WithoutTheLibraryOneLineSaysHowToGetIt) {
  directory_.write("a.parquet", "PAR1");
  shell(
      fmt::format("{}=/nosuch.so '{}' data tokenize --input a.parquet --tokenizer bytes "
                  "--output s 2>error.txt; test $? = 2",
                  kDuckdbVariable, kintsugi_binary()));
  const std::string error = content("error.txt");
  EXPECT_THAT(error, AllOf(testing::StartsWith("error: a.parquet is Parquet"),
                           HasSubstr("/nosuch.so is not installed: npm install @duckdb/"),
                           HasSubstr(kDuckdbVariable)));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
}

// A job over all formats is the job over the same texts as lines.
TEST_F(CorpusFormats, TokenizingAndCountingReadRows) {
  KINTSUGI_NEEDS_DUCKDB();
  copy_to("a.parquet", "SELECT 'text ' || i AS text, i AS id FROM range(3000) t(i)",
          "FORMAT parquet");
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += fmt::format("{{\"text\": \"text {}\"}}\n", i);
  directory_.write("a.jsonl", lines);
  const auto tokenizer = load_tokenizer("bytes");
  std::vector<std::string> stores;
  for (const char* name : {"a.parquet", "a.jsonl"}) {
    TokenizeOptions options;
    options.inputs = {directory_ / name};
    options.output = directory_ / (std::string(name) + "-store");
    tokenize(*tokenizer, options, [](const TokenizeProgress&) { return true; });
    stores.push_back(content((std::string(name) + "-store.bin").c_str()));
    const CorpusPreTokens counted = count_corpus_pre_tokens({directory_ / name}, {});
    EXPECT_EQ(counted.counts().size(), 1u + 3000u) << name;
  }
  EXPECT_EQ(stores[0], stores[1]);
  const std::string rows = read_whole_text((directory_ / "a.parquet").string());
  EXPECT_EQ(RowJson::parse(rows.substr(0, rows.find('\n'))),
            (RowJson{{"text", "text 0"}, {"id", 0}}));
}

// ---- web archives

std::string warc_record(const std::string& type, const std::string& content,
                        const std::string& more = "", std::optional<std::string> length = {}) {
  return fmt::format(
      "WARC/1.0\r\nWARC-Type: {}\r\nWARC-Date: 2024-05-18T01:58:10Z\r\n"
      "WARC-Record-ID: <urn:uuid:7>\r\n{}content-length: {}\r\n\r\n{}\r\n\r\n",
      type, more, length.value_or(std::to_string(content.size())), content);
}
std::string web_page(int i) {
  return warc_record("conversion", fmt::format("Page {}\nwörd \"{}\"\t\\", i, i),
                     fmt::format("WARC-Target-URI: http://a.fi/{}\r\n"
                                 "WARC-Identified-Content-Language: fin,eng\r\n",
                                 i));
}

TEST_F(CorpusFormats, RecordsOfWebArchivesHaveTextAndMetadata) {
  std::vector<std::string> records = {warc_record("warcinfo", "software: x\r\n")};
  for (int i = 0; i < 300; ++i) records.push_back(web_page(i));
  records.push_back(warc_record("response",
                                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hi</p>",
                                "WARC-Target-URI: http://b.fi/\xFF\r\n"));
  records.push_back(warc_record(
      "response", "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n\x1a\n"));
  records.push_back(warc_record("request", "GET / HTTP/1.1\r\n\r\n"));
  std::string plain, packed;
  for (const std::string& record : records) {
    plain += record;
    packed += gzip(record);
  }
  directory_.write("a.warc", plain);
  directory_.write("a.warc.wet.gz", packed);
  directory_.write("c.wet", plain);
  shell(
      "xz -k c.wet && python3 -c \"import gzip; open('p.wet.gz', 'wb').write(b''.join("
      "gzip.compress(b'WARC/1.' + r) for r in open('c.wet', 'rb').read().split(b'WARC/1.')[1:])"
      ")\"");
  for (const char* name : {"a.warc", "a.warc.wet.gz", "c.wet.xz", "p.wet.gz"}) {
    const Corpus corpus = read(directory_ / name);
    ASSERT_EQ(corpus.records.size(), 301u) << name;
    EXPECT_EQ(RowJson::parse(corpus.records[42]), (RowJson{{"text", "Page 42\nwörd \"42\"\t\\"},
                                                           {"url", "http://a.fi/42"},
                                                           {"date", "2024-05-18T01:58:10Z"},
                                                           {"language", "fin,eng"},
                                                           {"id", "<urn:uuid:7>"}}));
    const RowJson response = RowJson::parse(corpus.records[300]);
    EXPECT_EQ(response["text"], "<p>hi</p>");
    EXPECT_EQ(response["url"], "http://b.fi/\xEF\xBF\xBD");
    expect_resumable(directory_ / name, {}, corpus);
  }
}

TEST_F(CorpusFormats, WrongLengthsCostTheirRecord) {
  const std::vector<std::string> wrong = {
      warc_record("conversion", "too short a length for this text", "", "7"),
      warc_record("conversion", "too long", "", "9000"),
      warc_record("conversion", "far too long", "", "5000000000"),
      warc_record("conversion", "absurd", "", "18446744073709551615"),
      warc_record("conversion", "negative", "", "-1"),
      warc_record("conversion", "no number", "", "many"),
      warc_record("metadata", "of a record that is no document", "", "900"),
      "no record at all\r\n\r\n"};
  for (const std::string& record : wrong) {
    std::string archive = web_page(0) + record;
    for (int i = 1; i < 100; ++i) archive += web_page(i);
    const fs::path file = directory_.write("wrong.warc", archive);
    EXPECT_THAT(
        complaint(file),
        HasSubstr(fmt::format("wrong.warc, record 2, byte {} of its text: ", web_page(0).size())));
    const Corpus rest = read_skipping(file);
    EXPECT_EQ(rest.records.size(), 100u) << record;
    EXPECT_EQ(rest.skipped.size(), 1u) << record;
    expect_resumable(file, {.skip_damaged = true}, rest);
  }
  const std::string whole = web_page(0) + web_page(1);
  for (const std::size_t left : {whole.size() - 8, whole.size() - 120, web_page(0).size() + 9}) {
    const fs::path cut = directory_.write("cut.warc", whole.substr(0, left));
    EXPECT_THAT(complaint(cut), AllOf(HasSubstr("cut.warc, record 2"), HasSubstr("ends inside")));
    EXPECT_EQ(read_skipping(cut).records.size(), 1u);
  }
}

TEST_F(CorpusFormats, ADamagedMemberCostsItsRecord) {
  std::string packed;
  std::size_t begin = 0;
  for (int i = 0; i < 200; ++i) {
    if (i == 77) begin = packed.size();
    packed += gzip(web_page(i));
  }
  std::string damaged = packed;
  damaged[begin + 40] ^= 0xFF;
  damaged[begin + 41] ^= 0xFF;
  const fs::path file = directory_.write("a.warc.gz", damaged);
  EXPECT_THAT(complaint(file), HasSubstr("a.warc.gz is damaged near byte"));
  const Corpus rest = read_skipping(file);
  EXPECT_EQ(rest.records.size(), 199u);
  ASSERT_GE(rest.skipped.size(), 1u);
  EXPECT_GE(rest.skipped[0].begin, begin);
  EXPECT_EQ(rest.skipped[0].end, begin + gzip(web_page(77)).size());
  expect_resumable(file, {.skip_damaged = true}, rest);
  const Corpus cut =
      read_skipping(directory_.write("c.warc.gz", packed.substr(0, packed.size() - 9)));
  EXPECT_GE(cut.records.size(), 199u);
  EXPECT_EQ(cut.skipped.size(), 1u);
}

// ---- compressed lines

std::string numbered_lines(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += fmt::format("{{\"text\": \"line {}\"}}\n", i);
  return text;
}

TEST_F(CorpusFormats, TheXzProgram) {
  const std::string text = numbered_lines(0, 50'000);
  directory_.write("a.jsonl", text);
  shell(
      "xz -k -9 a.jsonl && cat a.jsonl.xz a.jsonl.xz >b.jsonl.xz && xz -k --check=sha256 "
      "--block-size=100000 -c a.jsonl >c.jsonl.xz && printf '\\0\\0\\0\\0' >>c.jsonl.xz");
  EXPECT_EQ(read(directory_ / "a.jsonl.xz").records.size(), 50'000u);
  EXPECT_EQ(read(directory_ / "b.jsonl.xz").records.size(), 100'000u);
  const Corpus blocks = read(directory_ / "c.jsonl.xz");
  EXPECT_EQ(blocks.texts().back(), "line 49999");
  std::string packed = content("c.jsonl.xz");
  EXPECT_THAT(complaint(directory_.write("cut.jsonl.xz", packed.substr(0, packed.size() / 2))),
              HasSubstr("is truncated"));
  packed[packed.size() / 2] ^= 0x55;
  const fs::path damaged = directory_.write("bad.jsonl.xz", packed);
  EXPECT_THAT(complaint(damaged), HasSubstr("(xz: "));
  const Corpus rest = read_skipping(damaged);
  EXPECT_EQ(rest.skipped.size(), 1u);
  expect_resumable(damaged, {.skip_damaged = true}, rest);
}

TEST_F(CorpusFormats, LinesOfOtherMembersSurviveDamage) {
  for (const auto& pack : {gzip, zstd}) {
    std::string packed;
    std::size_t middle = 0;
    for (int i = 0; i < 10; ++i) {
      const std::string member = pack(numbered_lines(1000 * i, 1000 * i + 1000));
      if (i == 4) middle = packed.size() + member.size() / 2;
      packed += member;
    }
    for (std::size_t i = 0; i < 8; ++i) packed[middle + i] ^= 0x5A;
    const fs::path file = directory_.write("a.jsonl.gz", packed);
    EXPECT_THAT(complaint(file), HasSubstr("a.jsonl.gz is damaged near byte"));
    const Corpus rest = read_skipping(file);
    EXPECT_GE(rest.records.size(), 9000u);
    EXPECT_EQ(rest.records.back(), R"({"text": "line 9999"})");
    expect_resumable(file, {.skip_damaged = true}, rest);
  }
}

// 4 GB of zeros in one line are 4 MB of gzip.
TEST_F(CorpusFormats, BombsAndEndlessLinesAreRefusedInBoundedMemory) {
  std::string packed = gzip("{\"text\": \"first\"}\n{\"text\": \"");
  const std::string zeros = gzip(std::string(1 << 22, '0'));
  for (int i = 0; i < 40; ++i) packed += zeros;
  packed += gzip("\"}\n{\"text\": \"last\"}\n");
  const fs::path file = directory_.write("bomb.jsonl.gz", packed);
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  RecordReader::Options options;
  options.longest_line = 1 << 22;
  EXPECT_THAT(complaint(file, options),
              HasSubstr("bomb.jsonl.gz, line 2: longer than 4194304 bytes"));
  options.skip_damaged = true;
  const Corpus rest = read(file, options);
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_THAT(rest.texts(), ElementsAre("first", "last"));
  ASSERT_EQ(rest.skipped.size(), 1u);
  EXPECT_EQ(to_string(rest.skipped[0]),
            fmt::format("{}, line 2: longer than 4194304 bytes; 1 document lost", file.string()));
  expect_resumable(file, options, rest);
  if (!kAddressSanitizer && !kThreadSanitizer) {
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 40 << 10) << "KiB";
  }
}

TEST_F(CorpusFormats, InvalidUtf8IsOneLine) {
  const fs::path file =
      directory_.write("a.warc", web_page(0) + warc_record("conversion", "ab\xFF") + web_page(1));
  RecordReader reader(file);
  Document document;
  const std::string error = user_error_of([&] {
    for (Record record; reader.next(record);)
      parse_document(record.bytes, {}, reader.name(), record.line, document);
  });
  EXPECT_THAT(error, HasSubstr("a.warc, record 2, byte 12: invalid UTF-8"));
}

// What is lost is counted, also over a restart, and the store has the rest.
TEST_F(CorpusFormats, AJobReportsWhatItSkipped) {
  std::string packed;
  for (int i = 0; i < 60; ++i) {
    std::string member = gzip(numbered_lines(100 * i, 100 * i + 100));
    if (i == 30) member.resize(member.size() / 2);
    packed += member;
  }
  TokenizeOptions options;
  options.inputs = {directory_.write("a.jsonl.gz", packed)};
  options.output = directory_ / "store";
  options.batch_bytes = 1000;
  options.save_every_s = 0;
  options.threads = 2;
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_THAT(user_error_of([&] {
                tokenize(*tokenizer, options, [](const TokenizeProgress&) { return true; });
              }),
              HasSubstr("a.jsonl.gz is damaged near byte"));
  options.skip_invalid = true;
  int left = 0;
  TokenizeResult result;
  do {
    left = 70;  // batches until it is stopped
    result = tokenize(*tokenizer, options, [&](const TokenizeProgress&) { return --left > 0; });
  } while (result.state == TokenizeResult::State::Stopped);
  EXPECT_GE(result.progress.counts.documents, 5900);
  EXPECT_LT(result.progress.counts.documents, 6000);
  ASSERT_EQ(result.skipped.size(), 1u);
  EXPECT_THAT(to_string(result.skipped[0]), HasSubstr("a.jsonl.gz, bytes "));
  const std::string stopped = content("store.bin");
  options.overwrite = true;
  result = tokenize(*tokenizer, options, [](const TokenizeProgress&) { return true; });
  EXPECT_EQ(content("store.bin"), stopped);
  options.inputs = {directory_.write("b.jsonl.gz", packed.substr(0, 30))};
  EXPECT_THAT(user_error_of([&] {
                tokenize(*tokenizer, options, [](const TokenizeProgress&) { return true; });
              }),
              HasSubstr("1 file, 0 empty documents, 0 malformed lines, 1 damaged part"));
}

}  // namespace
}  // namespace kintsugi
