#include "support/file_parsers.h"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <typeinfo>

#include "backend/cpu/cpu_backend.h"
#include "backend/tuning_cache.h"
#include "comm/grid.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "data/document.h"
#include "data/record_reader.h"
#include "data/store_check.h"
#include "data/token_store.h"
#include "data/tokenize_journal.h"
#include "data/tokenizer.h"
#include "plan/machine.h"
#include "plan/measured_rows.h"
#include "plan/memory_rows.h"
#include "plan/trial_log.h"
#include "support/compress.h"
#include "support/mutated_bytes.h"
#include "support/parallel_run.h"
#include "support/paths.h"
#include "support/token_files.h"
#include "tensor/safetensors.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Files = FileParser::Files;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_files(const fs::path& directory, const Files& files) {
  for (const auto& [name, content] : files) {
    fs::create_directories((directory / name).parent_path());
    std::ofstream(directory / name, std::ios::binary) << content;
  }
}

Files files_in(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && !entry.is_symlink())
      files[fs::relative(entry.path(), directory).string()] = content_of(entry.path());
  return files;
}

// One sample per file of a folder, each under the name `as`.
std::vector<Files> samples_from(const fs::path& folder, const std::string& ending,
                                const std::string& as) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ending) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Files> samples;
  for (const fs::path& path : paths) samples.push_back({{as, content_of(path)}});
  return samples;
}

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
            for (const std::string& name : model.names())
              for (const std::byte byte : model.find(name).bytes())
                sum += static_cast<std::uint64_t>(byte);
            if (sum == 1) user_error("sum");  // so that every byte is read
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

// ---- token stores and what they are made of

Files store_files(TokenType type) {
  const TemporaryDirectory scratch;
  write_megatron((scratch / "s").string(), type, {{1, 2, 3, 4}, {5}, {6, 7, 8, 9, 10}, {11, 12}},
                 {0, 2, 3, 4});
  return files_in(scratch.path());
}

FileParser token_store() {
  Files with_mask = store_files(TokenType::U16);
  with_mask["s.mask"] = std::string("\1\0\1\1\1\1\0\1\1\1\1\1", 12);
  return {.name = "token-store",
          .samples = {store_files(TokenType::U8), store_files(TokenType::I32), with_mask},
          .damaged = {},
          .read = [](const fs::path& directory) {
            for (const TokenShard& shard : open_token_store((directory / "s").string())) {
              check_shard(shard, 20, nullptr);
              shard.fingerprint();
              shard.loss_mask();
              const std::int64_t documents = std::min<std::int64_t>(shard.documents(), 1000),
                                 sequences = std::min<std::int64_t>(shard.sequences(), 1000);
              for (std::int64_t i = 0; i < documents; ++i) shard.document_begin(i);
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
      .made_from = R"({"inputs": [{"path": "a.jsonl", "bytes": 12}], "type": "uint16"})"};
  write_store_info(scratch / "s", info);
  return {.name = "store-info",
          .samples = {files_in(scratch.path())},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const auto read = read_store_info(directory / "s");
            if (read) identity_difference(read->made_from, read->made_from);
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

void read_records(const fs::path& file) {
  RecordReader reader(file);
  Record record;
  Document document;
  while (reader.next(record))
    if (reader.jsonl())
      parse_document(record.bytes, {.text_key = "text", .prompt_key = "prompt"}, reader.name(),
                     record.line, document);
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

FileParser compressed() {
  const std::string lines = json_lines();
  return {
      .name = "compressed",
      .samples = {{{"a.jsonl.gz", gzip(lines) + gzip("{\"text\": \"b\", \"prompt\": \"a\"}\n")}},
                  {{"a.jsonl.zst", zstd(lines) + zstd(lines)}},
                  {{"a.txt.gz", gzip("text\n\nmore text")}}},
      .damaged = {},
      .read = [](const fs::path& directory) {
        for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "a.txt.gz"})
          if (fs::exists(directory / name)) read_records(directory / name);
      }};
}

// ---- configurations

FileParser run_config() {
  return {.name = "run-config",
          .samples = samples_from(fs::path(source_directory()) / "examples", ".yaml", "run.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            const RunConfig config = load_run_config(directory / "run.yaml");
            // What was accepted can be written down and read again.
            parse_run_config(to_yaml(config), "config.yaml");
          }};
}

FileParser overrides() {
  FileParser parser{
      .name = "override", .samples = {}, .damaged = {"set"}, .read = [](const fs::path& directory) {
        parse_run_config(content_of(directory / "run.yaml"), "run.yaml",
                         {content_of(directory / "set")});
      }};
  for (const char* text : {"optimizer.lr=1e-3", "layout={tp: 2, recompute: full}", "run.seed=7",
                           "data.train=[{path: a, weight: 0.5}]", "train.tokens=4M"})
    parser.samples.push_back(
        {{"run.yaml", "model: {preset: llama-tiny}\ndata: {train: [{path: a.txt}]}\n"},
         {"set", text}});
  return parser;
}

FileParser model_yaml() {
  return {.name = "model-yaml",
          .samples = samples_from(fs::path(source_directory()) / "models", ".yaml", "m.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            ModelConfig config = parse_model_yaml(content_of(directory / "m.yaml"), "m.yaml");
            config.complete_and_check();
          }};
}

FileParser machine_yaml() {
  return {.name = "machine-yaml",
          .samples = samples_from(fs::path(source_directory()) / "machines", ".yaml", "m.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            parse_machine(to_yaml(load_machine((directory / "m.yaml").string())), "again");
          }};
}

FileParser hf_config() {
  FileParser parser{
      .name = "hf-config", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        const ModelConfig config = read_hf_config(directory / "config.json");
        parse_hf_config(write_hf_config(config, DType::BF16), "again");
      }};
  for (const char* kind : {"bloom", "gpt2", "llama", "llama2", "qwen2", "qwen3"})
    parser.samples.push_back(
        {{"config.json", content_of(fs::path(test_data_directory()) / kind / "config.json")}});
  return parser;
}

// ---- checkpoints

// Everything that an engine of one small layer needs to load a checkpoint.
struct SmallEngine {
  Training training{.model = tiny_model("llama-tied", 1, 2), .precision = DType::F32};
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Groups groups = groups_of_one(*backend);
  Engine engine{*backend, *backend, training.engine({}), groups};
};

// So that damage reaches whoever reads the file behind the checksums.
void update_checksum(const fs::path& directory, const std::string& file) {
  nlohmann::json checksums = nlohmann::json::parse(content_of(directory / "checksums.json"));
  if (!checksums["files"].contains(file)) return;
  const std::string content = content_of(directory / file);
  checksums["files"][file] = hex64(hash64(content.data(), content.size()));
  std::ofstream(directory / "checksums.json") << checksums.dump(2);
}

FileParser checkpoint() {
  const auto small = std::make_shared<SmallEngine>();
  small->engine.initialize(1);
  const TemporaryDirectory scratch;
  const fs::path saved = save_checkpoint(scratch.path(), small->engine,
                                         {.step = 3,
                                          .tokens = 21,
                                          .samples = 3,
                                          .seed = 1,
                                          .data = "0123456789abcdef",
                                          .loss_scale = {}},
                                         {});
  return {.name = "checkpoint",
          .samples = {files_in(saved)},
          .damaged = {"trainer.json", "checksums.json", "config.json"},
          .read =
              [small](const fs::path& directory) {
                load_checkpoint(directory, small->engine);
                find_latest_checkpoint(directory);
              },
          .mend = update_checksum};
}

// ---- plans

FileParser measured_rows() {
  const std::string rows =
      "dataset,layers,hidden,heads,ffn,vocab,seq,hardware,gpus,TP,PP,CP,VPP,DP,MBS,GBS,zero,"
      "recompute,precision,step_time_s,kv_heads,mlp,tied_embeddings,note,status,mem_kind\n"
      "a,48,8192,64,32768,51200,2048,A100-80 Selene,512,8,2,,1,32,4,1536,0,full,fp16,14.4,64,gelu,"
      "1,,measured,\n"
      "b,32,4096,32,14336,128256,8192,H100,64,1,1,2,1,32,1,1024,,,bf16,12.33,8,swiglu,0,\"a, "
      "\"\"b\"\"\",measured,\n";
  return {.name = "measured-rows",
          .samples = {{{"rows.csv", rows}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const CsvTable table(content_of(directory / "rows.csv"), "rows.csv");
            for (std::size_t row = 0; row < table.rows(); ++row) predict(read_row(table, row));
          }};
}

FileParser memory_rows() {
  const std::string rows =
      "dataset,case,platform,pp_stage,num_layers,hidden_size,num_attention_heads,num_query_groups,"
      "seq_length,vocab_size,micro_batch_size,global_batch_size,tensor_model_parallel_size,"
      "pipeline_model_parallel_size,num_layers_per_virtual_pipeline_stage,context_parallel_size,"
      "expert_model_parallel_size,num_experts,moe_router_topk,sequence_parallel,"
      "use_distributed_optimizer,recompute_granularity,bf16,fp16,fp8_format,swiglu,"
      "untie_embeddings_and_output_weights,deterministic_mode,transformer_impl,attention_backend,"
      "tokenizer,other_args,gpus_total,mem_max_allocated_bytes,params_optimizer_bytes,"
      "activation_bytes\n"
      "g,a,dev_dgx_h100,,32,4096,32,8,8192,131073,1,8,1,4,1,,,,,,True,,True,,,,True,True,"
      "transformer_engine,,NullTokenizer,max-position-embeddings=8192 group-query-attention,8,"
      "60720852992,,\n"
      "g,b,dev_dgx_a100,,12,512,8,,1024,,4,32,1,1,,,,,,,,full,True,,,,,True,transformer_engine,"
      "unfused,gpt2-bpe,max-position-embeddings=1024,,2534070272,,\n";
  return {.name = "memory-rows",
          .samples = {{{"rows.csv", rows}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const CsvTable table(content_of(directory / "rows.csv"), "rows.csv");
            if (!is_memory_table(table)) user_error("another table");
            for (std::size_t row = 0; row < table.rows(); ++row) predict_memory(table, row);
          }};
}

FileParser trial_log() {
  const TemporaryDirectory scratch;
  TrialLog log(scratch / "trials.csv", "a job");
  log.add({.layout = {.tp = 2, .pp = 4, .dp = 8},
           .predicted = 9,
           .result = {.tokens_per_s = 8},
           .seconds = 12.5});
  log.add({.layout = {.dp = 128}, .predicted = 99, .result = {.failure = "it said \"no\", twice"}});
  return {.name = "trial-log",
          .samples = {files_in(scratch.path())},
          .damaged = {},
          .read = [](const fs::path& directory) { TrialLog(directory / "trials.csv", "a job"); }};
}

FileParser tuning_cache() {
  return {.name = "tuning-cache",
          .samples = {{{"cache", "owner\tkey\tvalue\nowner\tother key\t1 2 3\nB200\tkey\tx\n"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            TuningCache(directory / "cache", "owner").find("key");
          }};
}

}  // namespace

std::vector<FileParser> file_parsers() {
  return {safetensors(),   tokenizer_json(),   sentencepiece(), tiktoken(),    token_store(),
          store_info(),    tokenize_journal(), jsonl(),         compressed(),  run_config(),
          overrides(),     model_yaml(),       machine_yaml(),  hf_config(),   checkpoint(),
          measured_rows(), memory_rows(),      trial_log(),     tuning_cache()};
}

void ParserFuzz::write(std::uint64_t i) const {
  for (const auto& entry : fs::directory_iterator(directory())) fs::remove_all(entry.path());
  std::mt19937_64 random(hash64(parser_.name) ^ seed_ * 0x9E3779B97F4A7C15ull ^ i << 20);
  const auto any = [&](const auto& list) -> const auto& { return list[random() % list.size()]; };
  Files files = any(parser_.samples);
  std::vector<std::string> names = parser_.damaged;
  if (names.empty())
    for (const auto& [name, content] : files) names.push_back(name);
  const std::string& name = any(names);
  // Parts of another sample fit in places where random bytes do not.
  const std::string other = any(parser_.samples).begin()->second;
  files[name] = mutated_bytes(files[name], other, random);
  write_files(directory(), files);
  if (parser_.mend && name != "checksums.json") parser_.mend(directory(), name);
}

std::string ParserFuzz::read(FuzzCounts& counts) const {
  try {
    parser_.read(directory());
    ++counts.accepted;
  } catch (const UserError&) {
    ++counts.refused;
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", typeid(error).name(), error.what());
  }
  return "";
}

}  // namespace kintsugi
