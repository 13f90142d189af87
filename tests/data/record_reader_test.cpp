#include "data/corpora/record_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/tokenizers/tokenizer.h"
#include "support/compress.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> documents_of(const std::filesystem::path& path,
                                      const DocumentFormat& format = {}) {
  RecordReader reader(path);
  std::vector<std::string> documents;
  bool open = false;
  Document document;
  for (Record record; reader.next(record);) {
    if (!open) documents.emplace_back();
    if (reader.has_objects()) {
      parse_document(record.bytes, format, reader.name(), record.line, document);
      if (!format.prompt_key.empty()) documents.back() += document.prompt + "|";
      documents.back() += document.text;
    } else {
      documents.back() += record.bytes;
    }
    open = !record.ends_document;
  }
  EXPECT_FALSE(open) << "the last document does not end";
  EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
  return documents;
}

TEST(RecordReader, JsonLines) {
  const TemporaryDirectory directory;
  const std::string lines =
      "{\"text\":\"one\"}\n\n  \r\n{\"text\":\"\"}\r\n{\"id\":3,\"text\":\"three\\n\"}";
  for (const char* name : {"a.jsonl", "a.ndjson", "a.json"})
    EXPECT_THAT(documents_of(directory.write(name, lines)), ElementsAre("one", "", "three\n"));
  EXPECT_THAT(documents_of(directory.write("a.jsonl.gz", gzip(lines))),
              ElementsAre("one", "", "three\n"));
  EXPECT_THAT(documents_of(directory.write("a.jsonl.zst", zstd(lines))),
              ElementsAre("one", "", "three\n"));
  EXPECT_THAT(documents_of(directory.write("bom.jsonl", "\xEF\xBB\xBF{\"text\":\"x\"}\n")),
              ElementsAre("x"));
  EXPECT_THAT(documents_of(directory.write("empty.jsonl", "")), ElementsAre());
  EXPECT_THAT(documents_of(directory.write("p.jsonl", R"({"q":"Q","a":"A"})"), {"a", "q"}),
              ElementsAre("Q|A"));
}

TEST(RecordReader, PlainTextIsOneDocument) {
  const TemporaryDirectory directory;
  EXPECT_THAT(documents_of(directory.write("a.txt", "{\"text\":1}\n")),
              ElementsAre("{\"text\":1}\n"));
  EXPECT_THAT(documents_of(directory.write("b", gzip("hello"))), ElementsAre("hello"));
  EXPECT_THAT(documents_of(directory.write("empty.txt", "")), ElementsAre());
  const std::string large = small_corpus(200'000);
  ASSERT_GT(large.size(), 4u << 20);
  EXPECT_THAT(documents_of(directory.write("large.txt.zst", zstd(large))), ElementsAre(large));
}

TEST(RecordReader, NamesFileAndLine) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("bad.jsonl", "{\"text\":\"a\"}\n\n{\"text\":}\n");
  EXPECT_THAT(user_error_of([&] { documents_of(file); }),
              AllOf(HasSubstr("bad.jsonl, line 3, byte 9"), HasSubstr("not a string")));
}

// The concatenated segments are the text. Each one starts at a safe boundary (a letter after a line
// break after a printable character) if there is one, and none exceeds the maximum length.
TEST(RecordReader, SplitsPlainTextAtSafeBoundaries) {
  const TemporaryDirectory directory;
  std::mt19937 random(9);
  const std::string alphabet = "ab .\n\n\r\tZ";
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 600, ' ');
    for (char& c : text) c = alphabet[random() % (round % 3 == 0 ? 3 : alphabet.size())];
    if (round % 5 == 0)
      for (std::size_t i = 0; i + 2 <= text.size(); i += 2) text.replace(i, 2, "é");
    std::filesystem::remove(directory / "t.txt");
    const std::string file = directory.write("t.txt", text);
    RecordReader::Options sizes;
    sizes.segment = 50;
    sizes.longest_segment = 200;
    RecordReader reader(file, {}, sizes);
    std::string all;
    std::vector<std::size_t> starts;
    bool ended = text.empty();
    for (Record record; reader.next(record);) {
      ASSERT_FALSE(ended && !text.empty());
      starts.push_back(all.size());
      EXPECT_EQ(record.line,
                1u + static_cast<std::size_t>(std::count(all.begin(), all.end(), '\n')));
      all += record.bytes;
      EXPECT_LE(record.bytes.size(), sizes.longest_segment);
      ended = record.ends_document;
      EXPECT_EQ(reader.position().text_bytes, all.size());
      // Another reader can continue from here.
      RecordReader resumed(file, reader.position(), sizes);
      Record next;
      EXPECT_EQ(resumed.next(next), !ended);
    }
    EXPECT_TRUE(ended);
    ASSERT_EQ(all, text);
    for (std::size_t i = 1; i < starts.size(); ++i) {
      const std::size_t at = starts[i];
      const bool good = text[at - 1] == '\n' &&
                        !std::isspace(static_cast<unsigned char>(text[at - 2])) &&
                        std::isalpha(static_cast<unsigned char>(text[at]));
      EXPECT_TRUE(good || at - starts[i - 1] >= 197) << "boundary at " << at;
      EXPECT_NE(static_cast<unsigned char>(text[at]) & 0xC0, 0x80) << "inside a character";
    }
  }
}

// The ids of a long text do not depend on its segment boundaries.
TEST(RecordReader, SegmentsEncodeLikeTheWhole) {
  const TemporaryDirectory directory;
  std::mt19937 random(13);
  const std::vector<std::string> words = {"The", "river's", "seven", "\n",    "\n\n",  " ",
                                          "  ",  "42",      "1984,", "don't", "\n  x", ".\n",
                                          ")\n", "\r\n",    "é",     "\t"};
  std::string text;
  for (int i = 0; i < 8000; ++i) text += words[random() % words.size()] + (random() % 2 ? " " : "");
  const std::string file = directory.write("t.txt", text);
  for (const char* name : {"gpt2", "llama3", "qwen", "dolma2", "neox", "starcoder", "bloom"}) {
    const auto tokenizer = load_tokenizer(test_data_directory() + "/tokenizers/" + name);
    std::vector<std::int32_t> whole, joined;
    tokenizer->encode(text, whole);
    RecordReader::Options sizes;
    sizes.segment = 300;
    RecordReader reader(file, {}, sizes);
    int count = 0;
    for (Record record; reader.next(record); ++count) tokenizer->encode(record.bytes, joined);
    EXPECT_GT(count, 50);
    EXPECT_TRUE(joined == whole) << name;
  }
}

TEST(RecordReader, RefusesEndlessLines) {
  const TemporaryDirectory directory;
  RecordReader::Options sizes;
  sizes.longest_line = 1000;
  RecordReader reader(directory.write("l.jsonl", "{}\n" + std::string(400'000, ' ')), {}, sizes);
  Record record;
  EXPECT_TRUE(reader.next(record));
  EXPECT_THAT(user_error_of([&] { reader.next(record); }), HasSubstr("line 2"));
}

TEST(RecordReader, ContinuesBetweenLines) {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += fmt::format("{{\"text\":\"{}\"}}\n", i * 7919);
  for (const std::string& file :
       {directory.write("a.jsonl", lines), directory.write("b.jsonl.gz", gzip(lines))}) {
    RecordReader reader(file);
    Record record;
    for (int i = 0; i < 1234; ++i) ASSERT_TRUE(reader.next(record));
    RecordReader resumed(file, reader.position());
    ASSERT_TRUE(resumed.next(record));
    EXPECT_EQ(record.bytes, fmt::format("{{\"text\":\"{}\"}}", 1234 * 7919));
    EXPECT_EQ(record.line, 1235u);
  }
}

// Damaged lines and streams give documents or a UserError.
TEST(RecordReader, DamageNeverCrashes) {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 30; ++i)
    lines += fmt::format("{{\"text\":\"line {} \\u00e9\",\"n\":[{}]}}\n", i, i);
  std::mt19937 random(21);
  int read = 0, refused = 0;
  for (int round = 0; round < 900; ++round) {
    std::string bytes = lines;
    if (round % 3 == 1) bytes = gzip(bytes);
    if (round % 3 == 2) bytes = zstd(bytes);
    for (unsigned change = random() % 3; change > 0; --change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    std::filesystem::remove(directory / "f.jsonl");
    const std::string file = directory.write("f.jsonl", bytes);
    try {
      documents_of(file);
      ++read;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("f.jsonl"));
      ++refused;
    }
  }
  EXPECT_GT(read, 200);
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace kintsugi
