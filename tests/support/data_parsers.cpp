// Tensors, tokenizers, prompts, token stores and text.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "cli/model/document_input.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/chat/prepare_job.h"
#include "data/chat/prompt_encoder.h"
#include "data/corpora/corpus_journal.h"
#include "data/corpora/record_reader.h"
#include "data/corpora/tokenize_job.h"
#include "data/curation/curate_job.h"
#include "data/curation/curation_report.h"
#include "data/curation/language_id.h"
#include "data/curation/recipe.h"
#include "data/curation/text_filters.h"
#include "data/dedup/dedup_directory.h"
#include "data/explore/explored_directory.h"
#include "data/provenance/card.h"
#include "data/sampling/packing_index.h"
#include "data/stores/store_check.h"
#include "data/stores/token_store.h"
#include "data/tokenizers/tokenizer.h"
#include "model/import/import.h"
#include "serve/prompts.h"
#include "support/compress.h"
#include "support/duckdb_files.h"
#include "support/parser_lists.h"
#include "support/paths.h"
#include "support/token_files.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Files = FileParser::Files;

// ---- tensors

FileParser safetensors() {
  const TemporaryDirectory scratch;
  const std::vector<float> values(12, 1.5F);
  const auto write = [&](const char* name, const std::vector<std::string>& tensors) {
    std::vector<SafetensorsWriter::Announced> announced;
    for (const std::string& tensor : tensors) announced.push_back({tensor, DType::F32, {3, 4}});
    SafetensorsWriter writer(scratch / name, announced);
    for (const std::string& tensor : tensors)
      writer.append(tensor, values.data(), values.size() * sizeof(float));
    writer.finish();
    return content_of(scratch / name);
  };
  const std::string one = write("one", {"a", "b.weight"}), two = write("two", {"c"});
  const std::string index =
      R"({"metadata": {"total_size": 144}, "weight_map": {"a": "model-1.safetensors",
          "b.weight": "model-1.safetensors", "c": "model-2.safetensors"}})";
  return {.name = "safetensors",
          .samples = {{{"model.safetensors", one}},
                      {{"model.safetensors.index.json", index},
                       {"model-1.safetensors", one},
                       {"model-2.safetensors", two}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const SafetensorsModel model(directory);
            std::uint64_t sum = 0;
            for (const std::string& name : model.names()) {
              const SafetensorsModel::Location found = model.find(name);
              for (const std::byte byte : found.bytes()) sum += static_cast<std::uint64_t>(byte);
            }
            if (sum == 1) user_error("sum");  // so that every byte is read
          }};
}

// ---- checkpoints of other programs

std::string import_fixture(const std::string& file) {
  return content_of(fs::path(test_data_directory()) / "import" / file);
}

FileParser torch_file() {
  return {.name = "torch-file",
          .samples = {{{"a.pt", import_fixture("torch-dist-llama/iter_0000020/common.pt")}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const MappedFile file(directory / "a.pt");
            const TorchFile torch(file.bytes(), "a.pt");
            torch.tensor(torch.root());
          }};
}

FileParser pickles() {
  FileParser parser{
      .name = "pickle", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        const Pickle pickle(content_of(directory / "p"), "p");
        if (const PickleValue* const found = pickle.root().find("planner_data")) found->find("x");
      }};
  for (const char* const fixture : {"dcp-qwen3", "torch-dist-gpt2/iter_0000020"})
    parser.samples.push_back({{"p", import_fixture(fixture + std::string("/.metadata"))}});
  return parser;
}

// All tensors are read, with every chunk.
FileParser foreign_checkpoint(const std::string& name, const std::string& fixture,
                              std::vector<std::string> damaged) {
  return {.name = name,
          .samples = {files_in(fs::path(test_data_directory()) / "import" / fixture)},
          .damaged = std::move(damaged),
          .read = [](const fs::path& directory) {
            const ForeignCheckpoint checkpoint(directory, CheckpointFormat::Auto, true);
            for (const auto& [tensor, chunked] : checkpoint.tensors()) {
              if (!chunked.dtype) continue;
              std::uint64_t bytes = size_of(*chunked.dtype);
              for (const std::int64_t extent : chunked.shape)
                bytes = std::min(bytes * static_cast<std::uint64_t>(
                                             std::min<std::int64_t>(extent, std::int64_t{1} << 20)),
                                 std::uint64_t{1} << 40);
              if (bytes > std::uint64_t{1} << 20) user_error("{} has another shape", tensor);
              checkpoint.read(tensor, std::vector<std::int64_t>(chunked.shape.size()),
                              chunked.shape);
            }
          }};
}

// ---- packing

// A store and the index of its packing. The hash of the damaged footer is corrected, so that the
// entries themselves are read.
FileParser packing_index() {
  const auto open_stream = [](const fs::path& directory, std::vector<TokenShard>& shards) {
    shards = open_token_store((directory / "a").string());
    return hold_out(shards, 0.0).train;
  };
  const TemporaryDirectory scratch;
  std::vector<std::vector<std::int32_t>> documents;
  for (std::size_t i = 0; i < 40; ++i) documents.emplace_back(1 + i * 7 % 23, 5);
  write_megatron((scratch / "a").string(), TokenType::U8, documents);
  std::vector<TokenShard> shards;
  PackingIndex::build(scratch / "a.index", open_stream(scratch.path(), shards), 12, 16);
  return {.name = "packing-index",
          .samples = {files_in(scratch.path())},
          .damaged = {"a.index"},
          .read =
              [=](const fs::path& directory) {
                std::vector<TokenShard> opened;
                const TokenStream stream = open_stream(directory, opened);
                const auto index = PackingIndex::open(directory / "a.index", stream, 12, false, 16);
                if (!index) user_error("stale");
                std::vector<TokenRange> ranges;
                for (std::int64_t i = 0; i < index->summary().samples; ++i) {
                  ranges.clear();
                  index->locate(i, stream, ranges);
                }
              },
          .mend =
              [](const fs::path& directory, const std::string& name) {
                std::string bytes = content_of(directory / name);
                if (bytes.size() < 72) return;
                const std::uint64_t hash = hash64(bytes.data() + bytes.size() - 72, 56);
                std::memcpy(bytes.data() + bytes.size() - 16, &hash, 8);
                std::ofstream(directory / name, std::ios::binary) << bytes;
              }};
}

// ---- tokenizers

void use_tokenizer(const std::string& name) {
  const auto tokenizer = load_tokenizer(name);
  for (const SpecialTokens special : {SpecialTokens::AsText, SpecialTokens::Honoured}) {
    std::vector<std::int32_t> ids;
    tokenizer->encode("Hello, wörld!  12345 <|endoftext|></s>\n\t\xF0\x9F\x98\x80 \xFF\xC3(", ids,
                      special);
    std::string text;
    tokenizer->decode(ids, text, special);
    for (const std::int32_t id : ids) tokenizer->bytes_of(id);
  }
  tokenizer->files(64);
  tokenizer->fingerprint();
}

FileParser tokenizer_json() {
  FileParser parser{.name = "tokenizer-json",
                    .samples = {},
                    .damaged = {},
                    .read = [](const fs::path& directory) { use_tokenizer(directory.string()); }};
  for (const char* kind :
       {"bloom", "dolma2", "gpt2", "gpt2_prefix", "llama2", "llama3", "metaspace", "neox", "qwen"})
    parser.samples.push_back(
        {{"tokenizer.json",
          content_of(fs::path(test_data_directory()) / "tokenizers" / kind / "tokenizer.json")}});
  parser.samples.front()["tokenizer_config.json"] =
      R"({"eos_token": {"content": "</s>"}, "add_bos_token": false, "model_max_length": 1024})";
  return parser;
}

FileParser sentencepiece() {
  FileParser parser{
      .name = "sentencepiece", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        use_tokenizer(directory.string());
      }};
  for (const char* kind : {"sentencepiece_bpe", "sentencepiece_unigram"})
    parser.samples.push_back(
        {{"tokenizer.model",
          content_of(fs::path(test_data_directory()) / "tokenizers" / kind / "tokenizer.model")}});
  return parser;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t block = 0;
    for (std::size_t j = 0; j < 3; ++j)
      block = block << 8 |
              (i + j < bytes.size() ? static_cast<std::uint8_t>(bytes[i + j]) : std::uint8_t{0});
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kDigits[block >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

FileParser tiktoken() {
  std::string ranks;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{} {}\n", base64(std::string(1, static_cast<char>(byte))), rank++);
  for (const char* token : {"he", "ll", "llo", "wo", "12", " w", "  "})
    ranks += fmt::format("{} {}\n", base64(token), rank++);
  return {.name = "tiktoken",
          .samples = {{{"ranks.tiktoken", ranks}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            use_tokenizer((directory / "ranks.tiktoken").string() + ":llama3");
          }};
}

// ---- prompts

FileParser prompt_settings() {
  const std::string config =
      R"({"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default",
          "template": "<|im_start|>{{ role }}<|im_end|>"}]})";
  const std::string json =
      R"({"model": {"vocab": {"a": 0}}, "post_processor": {"type": "Sequence", "processors": [
          {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}]}})";
  return {.name = "prompt-settings",
          .samples = {{{"tokenizer.json", json}, {"tokenizer_config.json", config}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            std::vector<Tokenizer::File> files;
            for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
              files.push_back({name, content_of(directory / name)});
            recognize_chat_format(read_prompt_settings(files).chat_template);
          }};
}

FileParser prompts() {
  return {.name = "prompts",
          .samples = {{{"p.jsonl",
                        "{\"prompt\": \"a\\nb\", \"id\": 7}\n"
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"\u00fc\"}]}\n"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const std::string content = content_of(directory / "p.jsonl");
            parse_prompts(content, "p.txt", false);
            for (const Prompt& prompt : parse_prompts(content, "p.jsonl", true))
              for (const ChatFormat& format : chat_formats())
                if (!prompt.messages.empty()) render_chat(format, prompt.messages, true);
          }};
}

// Examples of all kinds, each line as one file of its kind.
FileParser examples() {
  const std::vector<std::string> lines = {
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u\u00fc"},
 {"role": "assistant", "content": "a", "train": true}, {"role": "user", "content": "v"},
 {"role": "assistant", "content": "b", "weight": 1}]})",
      R"({"instruction": "i", "input": "j", "output": "o"})",
      R"({"prompt": "p", "completion": "c"})",
      R"({"prompt": [{"role": "user", "content": "u"}], "chosen": "a", "rejected": "b"})",
      R"({"chosen": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}],
 "rejected": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "b"}]})",
      R"({"text": "t", "label": "l"})",
      R"({"text": "t", "label": -12})"};
  FileParser parser{
      .name = "examples", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        const auto tokenizer = load_tokenizer("bytes");
        PrepareOptions options;
        options.inputs = {directory / "e.jsonl"};
        options.output = directory / "prepared" / "e";
        options.format = example_format(*tokenizer, "chatml");
        options.threads = 1;
        options.overwrite = true;
        prepare_examples(*tokenizer, options, [](const PrepareCounts&, double) { return true; });
      }};
  for (std::string line : lines) {
    std::replace(line.begin(), line.end(), '\n', ' ');
    parser.samples.push_back({{"e.jsonl", line + "\n" + line + "\n"}});
  }
  return parser;
}

// ---- token stores and their inputs

Files store_files(TokenType type) {
  const TemporaryDirectory scratch;
  write_megatron((scratch / "s").string(), type, {{1, 2, 3, 4}, {5}, {6, 7, 8, 9, 10}, {11, 12}},
                 {0, 2, 3, 4});
  return files_in(scratch.path());
}

FileParser token_store() {
  Files with_mask = store_files(TokenType::U16);
  with_mask["s.mask"] = std::string("\1\0\1\1\1\1\0\1\1\1\1\1", 12);
  Files with_labels = store_files(TokenType::U8);
  with_labels["s.labels"] = std::string("\1\0\0\0\0\0\0\0\1\0\0\0", 12);
  return {
      .name = "token-store",
      .samples = {store_files(TokenType::U8), store_files(TokenType::I32), with_mask, with_labels},
      .damaged = {},
      .read = [](const fs::path& directory) {
        for (const TokenShard& shard : open_token_store((directory / "s").string())) {
          check_shard(shard, 20, nullptr);
          shard.fingerprint();
          std::vector<std::uint8_t> mask(static_cast<std::size_t>(shard.tokens()));
          shard.read_mask(0, mask);
          const std::int64_t documents = std::min<std::int64_t>(shard.documents(), 1000),
                             sequences = std::min<std::int64_t>(shard.sequences(), 1000);
          for (std::int64_t i = 0; i < documents; ++i) {
            shard.document_begin(i);
            if (shard.has_labels()) shard.label(i);
          }
          for (std::int64_t i = 0; i < sequences; ++i) shard.sequence_begin(i);
          std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
          shard.read(0, ids);
          for (std::int64_t i = 0; i < std::min<std::int64_t>(shard.tokens(), 1000); ++i)
            shard.document_of(i);
        }
      }};
}

FileParser store_info() {
  const TemporaryDirectory scratch;
  StoreInfo info{
      .tokenizer = "0123456789abcdef",
      .tokenizer_description = "byte-level BPE, 50257 tokens",
      .vocab_size = 50257,
      .end_of_document = 50256,
      .bytes = 1000,
      .tokens = 250,
      .documents = 3,
      .shards = {{"s-00000", "0123456789abcdef", "0123456789abcdef", ""}},
      .kind = "classification",
      .labels = {"no", "yes"},
      .longest = 120,
      .made_from = R"({"inputs": [{"path": "a.jsonl", "bytes": 12}], "type": "uint16"})"};
  info.made_from = with_inputs(
      info.made_from, {{.file = "a", .path = "/x/a", .bytes = 12, .sha256 = "ab", .documents = 3}});
  write_store_info(scratch / "s", info);
  return {.name = "store-info",
          .samples = {files_in(scratch.path())},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const auto read = read_store_info(directory / "s");
            if (!read) return;
            identity_difference(read->made_from, read->made_from);
            inputs_in(read->made_from, "s");
          }};
}

FileParser tokenize_journal() {
  const TemporaryDirectory scratch;
  TokenizeJournal journal;
  journal.made_from = R"({"inputs": [{"path": "a.jsonl", "bytes": 12}], "type": "uint16"})";
  journal.counts = {.documents = 3, .tokens = 20, .text_bytes = 100, .invalid_lines = 1};
  journal.first_invalid = "a.jsonl line 3: no text";
  journal.shards = {{"s-00000", "0123456789abcdef", "0123456789abcdef", ""}};
  write_journal(scratch / "s", journal);
  return {.name = "tokenize-journal",
          .samples = {files_in(scratch.path())},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const auto read = read_journal(directory / "s");
            if (read) identity_difference(read->made_from, read->made_from);
          }};
}

std::string curation_record() {
  const TemporaryDirectory scratch;
  CurationRecord record;
  record.made_from = R"({"inputs": [["a.jsonl", 12, 5]], "recipe": "steps:"})";
  record.report.steps.push_back({.name = "urls", .in = {3, 100}, .out = {2, 80}});
  record.report.steps[0].removed["urls.domain"]["fi"] = {1, 20};
  record.report.steps[0].notes["without an address"] = 1;
  record.report.steps[0].leaks["quiz: 1"] = {
      .documents = 1, .share = 0.5, .hash = "0123456789abcdef"};
  record.report.steps[0].tasks["quiz"] = {
      .all = 3, .too_short = 1, .common = 1, .hash = "0123456789abcdef"};
  record.report.inputs["a.jsonl"] = {{3, 100}, {2, 80}};
  record.report.lengths["fi"].bytes_before.add(100, 3);
  record.report.examples.add({.order = 1, .rule = "urls.domain", .before = "text"}, 3);
  record.shards.push_back({"documents-00000.jsonl.zst", {2, 80}, 70, "0123456789abcdef"});
  record.skipped.push_back({.file = "a.jsonl", .end = 7, .reason = "damaged", .documents = 1});
  record.report.sources["web"].removed["urls.domain"]["fi"] = {1, 20};
  record.report.sources["web"].notes["personal_data.email"] = 3;
  record.provenance.recipe = "steps:\n  - urls:\n";
  record.provenance.sources.push_back(
      {.name = "web", .files = {"a*"}, .kind = SourceKind::Crawled, .date = "2025/2026-05"});
  record.provenance.inputs.push_back(
      {.file = "a.jsonl", .path = "/x/a.jsonl", .bytes = 12, .sha256 = "ab", .source = "web"});
  record.open_shard.domains["example.org"] = {2, 80};
  write_curation_record(scratch / "c.json", record);
  return content_of(scratch / "c.json");
}

// A recipe, and the journal of a job, which the next one continues from.
FileParser curation() {
  return {.name = "curation",
          .samples = {{{"recipe.yaml",
                        "sources:\n  - {name: a, files: [b*], kind: public, date: 2026-05, "
                        "languages: [fi]}\n"
                        "steps:\n  - repair: {mojibake: false}\n  - sample: {keep: "
                        "0.5, languages: {fi: 2}}\n  - gopher_quality:\n"}},
                      {{"curation.json", curation_record()}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            if (fs::exists(directory / "recipe.yaml"))
              to_yaml(read_recipe(content_of(directory / "recipe.yaml"), "recipe.yaml"));
            const auto record = read_curation_record(directory / "curation.json");
            if (record) record->report.table().text();
          }};
}

// The directory of a curation, and of a deduplication.
FileParser explored() {
  FileParser parser{
      .name = "explored", .samples = {}, .damaged = {}, .read = [](const fs::path& d) {
        explored_overview(d);
        explored_sample(d, 1, 5);
      }};
  parser.samples.push_back({{"curation.json", curation_record()},
                            {"documents-00000.jsonl.zst", zstd("{\"text\": \"a\"}\n")}});
  parser.samples.push_back(
      {{"dedup.json",
        R"({"kintsugi_dedup": 1, "by": "words", "tasks": 2, "text_key": "text", "minhash":
            {"bands": 3}, "inputs": [["a.jsonl", 1, 2], ["b.jsonl", 1, 2]]})"}});
  return parser;
}

void read_records(const fs::path& file, const std::string& prompt_key = "prompt") {
  for (const bool skip : {true, false}) {
    RecordReader reader(file, {}, {.skip_damaged = skip});
    Record record;
    Document document;
    while (reader.next(record)) {
      if (!reader.has_objects()) continue;
      try {
        parse_document(record.bytes, {.text_key = "text", .prompt_key = prompt_key}, reader.name(),
                       record.line, document);
      } catch (const UserError&) {
        if (!skip) throw;
      }
    }
    for (const SkippedInput& one : reader.take_skipped()) to_string(one);
  }
}

std::string json_lines() {
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += fmt::format(
        R"({{"id": {}, "prompt": "q\u00e9 \ud83d\ude00 \"{}\"", "text": "line\n{}", "meta": )"
        R"({{"a": [1, 2.5e3, true, null], "b": {{}}}}}})"
        "\n",
        i, i, std::string(static_cast<std::size_t>(i), 'x'));
  return lines;
}

FileParser jsonl() {
  return {.name = "jsonl",
          .samples = {{{"a.jsonl", json_lines()}}},
          .damaged = {},
          .read = [](const fs::path& directory) { read_records(directory / "a.jsonl"); }};
}

// The inputs of kintsugi classify and embed.
FileParser documents() {
  return {.name = "documents",
          .samples = {{{"d.jsonl",
                        "{\"text\": \"a\\nb\", \"id\": 7, \"label\": \"x\"}\n"
                        "{\"text\": \"\u00fc\", \"id\": [\"q\"], \"label\": 3}\n"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            RecordReader reader(directory / "d.jsonl");
            DocumentFacts facts;
            for (Record record; reader.next(record);)
              parse_document_line(record.bytes, "d.jsonl", "text", facts);
          }};
}

std::string xz_lines() {
  const TemporaryDirectory scratch;
  const std::string file = scratch.write("a.jsonl", json_lines());
  if (std::system(("xz -k '" + file + "'").c_str()) != 0) throw std::runtime_error("xz");
  return content_of(file + ".xz");
}

FileParser compressed() {
  const std::string lines = json_lines();
  return {
      .name = "compressed",
      .samples = {{{"a.jsonl.gz", gzip(lines) + gzip("{\"text\": \"b\", \"prompt\": \"a\"}\n")}},
                  {{"a.jsonl.zst", zstd(lines) + zstd(lines)}},
                  {{"a.txt.gz", gzip("text\n\nmore text")}},
                  {{"a.jsonl.xz", xz_lines()}}},
      .damaged = {},
      .read = [](const fs::path& directory) {
        for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.jsonl.xz"})
          if (fs::exists(directory / name)) read_records(directory / name);
      }};
}

// Models of fastText: plain, with a tree, quantized and pruned.
FileParser language_model() {
  FileParser parser{
      .name = "language-model", .samples = {}, .damaged = {}, .read = [](const fs::path& d) {
        const LanguageModel model(d / "m.bin");
        for (const char* text : {"", "ja och der", "Hyv\u00e4\u00e4 huomenta \xFF\xC3 </s> x"})
          model.guess(text);
      }};
  for (const char* kind : {"softmax", "tree", "words", "quantized", "pruned"})
    parser.samples.push_back({{"m.bin", content_of(fs::path(test_data_directory()) / "curation" /
                                                   (std::string("language_") + kind + ".bin"))}});
  return parser;
}

DedupOptions small_dedup(const fs::path& directory, DedupBy by) {
  DedupOptions options;
  options.by = by;
  options.buckets = 2;
  options.substring_words = 3;
  for (const char* name : {"0.jsonl", "1.jsonl"}) options.inputs.push_back(directory / name);
  options.output = directory / "out";
  options.shape.bands = 2;
  options.threads = 1;
  options.memory = 1 << 20;
  return options;
}

void run_dedup(const DedupOptions& options) {
  deduplicate(options, {[](const std::string&, std::int64_t, const std::string&) {},
                        [](std::int64_t) {}, [] { return false; }});
}

// Each sample has the files of the stages so far, which the next stage reads. "+" is for "/".
FileParser dedup_files(const std::string& parser_name, DedupBy by) {
  const TemporaryDirectory scratch;
  FileParser::Files files;
  for (const char* name : {"0.jsonl", "1.jsonl"})
    scratch.write(name, files[name] = R"({"text": "a b c d e f"}
{"text": "g h i j k"}
)");
  const DedupOptions given = small_dedup(scratch.path(), by);
  run_dedup(given);
  FileParser parser{
      .name = parser_name, .samples = {}, .damaged = {}, .read = [by](const fs::path& d) {
        fs::remove_all(d / "out");
        DedupOptions options = small_dedup(d, by);
        const DedupDirectory made(options);
        for (const auto& entry : fs::directory_iterator(d)) {
          std::string name = entry.path().filename();
          if (name.find('+') == std::string::npos) continue;
          std::replace(name.begin(), name.end(), '+', '/');
          fs::copy_file(entry.path(), d / "out" / name);
        }
        run_dedup(options);
      }};
  for (const DedupStageUnits& stage : dedup_stages(given)) {
    if (stage.stage == DedupStage::Remove) break;
    for (const auto& entry :
         fs::recursive_directory_iterator(scratch / "out" / to_string(stage.stage))) {
      if (!entry.is_regular_file()) continue;
      std::string name = fs::relative(entry.path(), scratch / "out");
      std::replace(name.begin(), name.end(), '/', '+');
      files[name] = content_of(entry.path());
    }
    parser.samples.push_back(files);
  }
  return parser;
}

// The files that a data card is made from. "+" is for "/".
FileParser data_history() {
  const TemporaryDirectory scratch;
  for (const char* name : {"0.jsonl", "1.jsonl"})
    scratch.write(name, R"({"text": "a b c d e f", "url": "http://x.fi/1", "language": "fi"}
{"text": "g h i j k", "url": "http://y.fi"}
)");
  CurateOptions curation;
  curation.recipe_text = "sources: [{name: a, files: ['0*']}]\nsteps:\n  - repair:\n";
  curation.recipe = read_recipe(curation.recipe_text, "r");
  curation.recipe.sources[0].files = {scratch / "0.jsonl"};
  curation.inputs = {scratch / "0.jsonl", scratch / "1.jsonl"};
  curation.output = scratch / "curated";
  curation.compression = CorpusCompression::None;
  curation.threads = 1;
  curate(curation, [](const CurateProgress&) { return true; });
  DedupOptions dedup = small_dedup(scratch.path(), DedupBy::Words);
  dedup.inputs = {scratch / "curated/documents-00000.jsonl"};
  run_dedup(dedup);
  FileParser::Files files = {{"details.yaml", "name: a\nsources: [{name: b, license: c}]\n"}};
  for (const char* name :
       {"curated/curation.json", "curated/origins-00000.json", "curated/documents-00000.jsonl",
        "out/dedup.json", "out/kept/00000.json", "out/kept/00000.jsonl.zst"}) {
    std::string flat = name;
    std::replace(flat.begin(), flat.end(), '/', '+');
    files[flat] = content_of(scratch / name);
  }
  return {.name = "data-history", .samples = {files}, .damaged = {}, .read = [](const fs::path& d) {
            for (const char* folder : {"curated", "out"}) fs::remove_all(d / folder);
            fs::create_directories(d / "out/kept");
            fs::create_directories(d / "curated");
            for (const auto& entry : fs::directory_iterator(d)) {
              std::string name = entry.path().filename();
              if (name.find('+') == std::string::npos) continue;
              std::replace(name.begin(), name.end(), '+', '/');
              fs::copy_file(entry.path(), d / name);
            }
            CardDetails details =
                read_card_details(content_of(d / "details.yaml"), "details.yaml", {});
            DataHistory history = read_history({d / "out", d / "curated"}, details.sources);
            if (!check_outputs(history, {}).empty()) user_error("damaged");
            const DataCard card = make_card(std::move(details), std::move(history), d / "card");
            croissant(card);
            card_page(card);
            domains_csv(card);
          }};
}

FileParser web_archive() {
  std::string plain, packed;
  for (int i = 0; i < 5; ++i) {
    const std::string text = std::string(static_cast<std::size_t>(30 * i), 'x') + "\u00fc\n";
    const std::string record = fmt::format(
        "WARC/1.0\r\nWARC-Type: {}\r\nWARC-Target-URI: http://a/{}\r\nContent-Length: {}\r\n\r\n{}"
        "\r\n\r\n",
        i == 0  ? "warcinfo"
        : i < 4 ? "conversion"
                : "response",
        i, text.size() + 17, "HTTP/1.1 200\r\n\r\n " + text);
    plain += record;
    packed += gzip(record);
  }
  return {.name = "web-archive",
          .samples = {{{"a.warc", plain}}, {{"a.wet.gz", packed}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            for (const char* name : {"a.warc", "a.wet.gz"})
              if (fs::exists(directory / name)) read_records(directory / name, "");
          }};
}

// In a process of its own: one that has used DuckDB has threads, and must not fork.
void execute_apart(const std::string& sql) {
  const pid_t process = ::fork();
  if (process == 0) {
    int code = 1;
    try {
      execute_in_duckdb(sql);
      code = 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  if (::waitpid(process, &status, 0) != process || status != 0)
    throw std::runtime_error("DuckDB does not write Parquet");
}

// By DuckDB's library, where it is installed.
std::vector<FileParser> parquet() {
  name_duckdb();
  if (!parquet_problem().empty()) return {};
  const TemporaryDirectory scratch;
  FileParser parser{.name = "parquet", .samples = {}, .damaged = {}, .read = [](const fs::path& d) {
                      read_records(d / "a.parquet");
                    }};
  for (const char* packing : {"zstd", "snappy", "uncompressed"}) {
    execute_apart(fmt::format(
        "COPY (SELECT 'text ' || i AS text, 'p' AS prompt, [i] AS list, {{'a': i, 'b': NULL}} AS "
        "meta FROM range(300) t(i)) TO '{}' (FORMAT parquet, COMPRESSION {}, ROW_GROUP_SIZE 100)",
        (scratch / "a.parquet").string(), packing));
    parser.samples.push_back({{"a.parquet", content_of(scratch / "a.parquet")}});
  }
  return {parser};
}

FileParser fineweb2_thresholds() {
  const std::string pairs =
      "top_n_grams: [[2, 0.2], [3, 0.18], [4, 0]]\n"
      "dup_n_grams:\n- - 5\n  - 0.15\n- - 6\n  - 0.14\n- - 7\n  - 0.1\n- - 8\n  - 0.1\n- - 9\n  - "
      "0\n"
      "- - 10\n  - 0.1\n";
  const std::string numbers =
      "language_score: 0.7\ndup_line_frac: 0.3\nline_punct_thr: -1\n"
      "new_line_ratio: 7.2\nmin_avg_word_length: 3\nmax_avg_word_length: 17\n"
      "max_non_alpha_words_ratio: 0.8\nstopwords:\n- de\n- \"f\\xFCr\"\n- 'no'\n";
  return {.name = "fineweb2-thresholds",
          .samples = {{{"nld_Latn.yml", numbers + pairs}}},
          .damaged = {},
          .read = [](const fs::path& d) { read_fineweb2_thresholds(d / "nld_Latn.yml"); }};
}

}  // namespace

std::vector<FileParser> data_parsers() {
  std::vector<FileParser> parsers = parquet();
  std::vector<FileParser> others = {
      safetensors(),
      prompt_settings(),
      prompts(),
      examples(),
      tokenizer_json(),
      sentencepiece(),
      tiktoken(),
      token_store(),
      store_info(),
      tokenize_journal(),
      jsonl(),
      compressed(),
      web_archive(),
      language_model(),
      dedup_files("dedup", DedupBy::Words),
      dedup_files("dedup-substrings", DedupBy::Substrings),
      data_history(),
      curation(),
      explored(),
      packing_index(),
      fineweb2_thresholds(),
      documents(),
      torch_file(),
      pickles(),
      foreign_checkpoint("dcp-metadata", "torch-dist-llama/iter_0000020", {".metadata"}),
      foreign_checkpoint("dcp-blobs", "torch-dist-llama/iter_0000020",
                         {"__0_0.distcp", "__1_0.distcp"}),
      foreign_checkpoint("megatron-ranks", "megatron-qwen2", {})};
  parsers.insert(parsers.end(), others.begin(), others.end());
  return parsers;
}

}  // namespace kintsugi
