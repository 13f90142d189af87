// Configurations, checkpoints and plans.
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/tuning_cache.h"
#include "comm/grid.h"
#include "core/error.h"
#include "core/gzip.h"
#include "core/hash.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/meter.h"
#include "launch/campaign/definition.h"
#include "launch/campaign/graph.h"
#include "launch/campaign/record.h"
#include "launch/job_description.h"
#include "launch/matrix.h"
#include "launch/node_ledger.h"
#include "launch/topology.h"
#include "model/adapter/stored_adapter.h"
#include "model/files/fingerprint.h"
#include "plan/machines/comments.h"
#include "plan/machines/machine.h"
#include "plan/search/planner.h"
#include "plan/search/trial_log.h"
#include "plan_accuracy/measured_rows.h"
#include "plan_accuracy/memory_rows.h"
#include "report/profile/profile_file.h"
#include "report/profile/profile_output.h"
#include "report/run_report.h"
#include "simulate/step/replay_file.h"
#include "support/parallel_run.h"
#include "support/parser_lists.h"
#include "support/paths.h"
#include "support/profile_spans.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/memory_file.h"
#include "train/config/config.h"
#include "train/control_request.h"
#include "train/trainer/preference_reference.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Files = FileParser::Files;

// One sample per file of a folder; each file gets the name `as`.
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

// ---- configurations

FileParser run_config() {
  return {.name = "run-config",
          .samples = samples_from(fs::path(source_directory()) / "examples", ".yaml", "run.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            // Some examples start from the model of another one, which is not there.
            const std::string text =
                std::regex_replace(content_of(directory / "run.yaml"),
                                   std::regex("init: runs/[^\\s,}]*"), "preset: llama-tiny");
            const Matrix matrix = read_matrix(text, "run.yaml");
            const RunConfig config =
                parse_run_config(matrix.text, "run.yaml", matrix.cells.front().overrides);
            // An accepted configuration can be written and read again.
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
            const std::string file = (directory / "m.yaml").string();
            machine_comments(file);
            parse_machine(to_yaml(load_machine(file)), "again");
          }};
}

FileParser program_yaml() {
  const fs::path folder = fs::path(source_directory()) / "tools/plan_accuracy/programs";
  return {.name = "program-yaml",
          .samples = samples_from(folder, ".yaml", "p.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            const Program program = load_program((directory / "p.yaml").string());
            for (const ProgramOption& option : program.options) with_options(program, option.name);
          }};
}

FileParser step_intervals_yaml() {
  return {.name = "step-intervals",
          .samples = samples_from(fs::path(source_directory()) / "uncertainty", ".yaml", "i.yaml"),
          .damaged = {},
          .read = [](const fs::path& directory) {
            const std::string text = content_of(directory / "i.yaml");
            parse_step_intervals(to_yaml(parse_step_intervals(text, "i.yaml")), "again");
          }};
}

FileParser step_replay() {
  Planner planner({.model = load_preset("moe-tiny"), .length = 64, .batch = 16},
                  load_machine("dgx-h100"));
  const Layout layout{.tp = 2, .pp = 2, .dp = 4, .zero = 1, .ep = 4};
  return {.name = "step-replay",
          .samples = {{{"step.json", to_json(planner.replay(planner.timing(layout)))}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const std::string text = content_of(directory / "step.json");
            parse_replay(to_json(parse_replay(text, "step.json")), "again");
          }};
}

FileParser topology() {
  FileParser parser{.name = "topology",
                    .samples = samples_from(
                        fs::path(source_directory()) / "tests/launch/topologies", ".txt", "node"),
                    .damaged = {},
                    .read = [](const fs::path& directory) {
                      const Topology node = load_topology(directory / "node");
                      parse_topology(to_lines(node), "again");
                    }};
  parser.samples.push_back({{"node", content_of(fs::path(source_directory()) /
                                                "tests/launch/topologies/two-gpus.xml")}});
  return parser;
}

FileParser job_description() {
  const JobDescription job{.name = "a",
                           .run_dir = "/r",
                           .launcher = {"srun", "--nodes={nodes}"},
                           .environment = {{"A", "b"}},
                           .job_ids = {"7"}};
  return {.name = "job-description",
          .samples = {{{"job.json", to_json(job)}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const JobDescription read = job_from_json(content_of(directory / "job.json"), "job");
            rank_command(read, {.nodes = read.nodes}, {"train"});
            job_from_json(to_json(read), "again");
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
  ModelConfig classifier = tiny_model("llama-tied", 1, 2);
  classifier.labels = {"a", "b c", "ä"};
  classifier.complete_and_check();
  parser.samples.push_back({{"config.json", write_hf_config(classifier, DType::F32)}});
  return parser;
}

FileParser peft_config() {
  FileParser parser{
      .name = "peft-config", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        const PeftConfig config = read_peft_config(directory);
        config.scale_of("model.layers.0.self_attn.q_proj");
        parse_peft_config(write_peft_config(config), "again");
      }};
  for (const char* kind : {"llama", "rs", "gpt2", "classifier"})
    parser.samples.push_back(
        {{kAdapterConfig, content_of(fs::path(test_data_directory()) / "finetune" /
                                     (std::string("lora-") + kind) / kAdapterConfig)}});
  parser.samples.push_back({{kAdapterConfig, R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16.5,
    "target_modules": ".*_proj", "rank_pattern": {"layers\\.0\\.self_attn.q_proj": 4},
    "alpha_pattern": {"^model.layers.1.mlp.up_proj": 2.5}, "use_rslora": true})"}});
  return parser;
}

// An adapter of PEFT, checked against its base model.
FileParser peft_directory() {
  const fs::path data = fs::path(test_data_directory()), adapter = data / "finetune/lora-rs";
  return {.name = "peft-directory",
          .samples = {{{kAdapterConfig, content_of(adapter / kAdapterConfig)},
                       {"adapter_model.safetensors",
                        content_of(adapter / "adapter_model.safetensors")}}},
          .damaged = {},
          .read = [data](const fs::path& directory) {
            const ModelConfig model = read_hf_config(data / "llama/config.json");
            const StoredAdapter stored(directory, model, "llama");
            const ParameterSet set(model);
            for (const Parameter& parameter : set.parameters())
              if (stored.matrix_of(parameter.name) != nullptr) stored.update_of(parameter);
          }};
}

// ---- checkpoints

// An engine with one small layer, to load a checkpoint.
struct SmallEngine {
  Training training{.model = tiny_model("llama-tied", 1, 2), .precision = DType::F32};
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Groups groups = single_rank_groups(*backend);
  Engine engine{*backend, *backend, training.engine({}), groups};
};

// Updates the checksum of a damaged file, so that the damage reaches the code that parses the file.
void update_checksum(const fs::path& directory, const std::string& file) {
  const fs::path path = directory / file, list = path.parent_path() / "checksums.json";
  const std::string name = path.filename().string();
  nlohmann::json checksums = nlohmann::json::parse(content_of(list));
  if (!checksums["files"].contains(name)) return;
  const std::string content = content_of(path);
  checksums["files"][name] = hex64(hash64(content.data(), content.size()));
  std::ofstream(list) << checksums.dump(2);
}

FileParser checkpoint() {
  const auto small = std::make_shared<SmallEngine>();
  small->engine.initialize(1);
  const TemporaryDirectory scratch;
  TrainerState state;
  state.step = 3;
  state.samples = 3;
  state.data = "0123456789abcdef";
  state.stage_start = 2;
  state.history = {{.run = "base", .last_step = 2, .data = "a", .config = "threads: 1\n"}};
  const fs::path saved = save_checkpoint(scratch.path(), small->engine, state, {});
  const std::string name = saved.filename().string();
  FileParser parser{
      .name = "checkpoint",
      .samples = {files_in(scratch.path())},
      .damaged = {},
      .read = [small, name](
                  const fs::path& directory) { load_checkpoint(directory / name, small->engine); },
      .mend = update_checksum};
  // Damages only text files; another parser tests tensors.
  for (const auto& [file, content] : parser.samples.front())
    if (file.ends_with(".json")) parser.damaged.push_back(file);
  return parser;
}

// Of a directory whose weights are loaded. A run that continues reads it in the parser above.
FileParser checksums() {
  const std::string weights = "eight … and more";
  const auto range = [&](std::size_t begin, std::size_t end) {
    return Checksums::Range{begin, end - begin, hex64(hash64(weights.data() + begin, end - begin))};
  };
  const Checksums list{{{"config.json", "0123456789abcdef"}},
                       {{"model.safetensors", {range(0, 8), range(8, weights.size())}}}};
  return {.name = "checksums",
          .samples = {{{kChecksums, write_checksums(list)}, {"model.safetensors", weights}}},
          .damaged = {kChecksums},
          .read = [](const fs::path& directory) {
            const Checksums found = read_checksums(directory).value();
            parse_checksums(write_checksums(found), "again");
            verify_weights_now(directory);
          }};
}

// ---- plans

FileParser measured_rows() {
  const std::string rows =
      "dataset,layers,hidden,heads,ffn,vocab,seq,machine,gpus,TP,PP,CP,VPP,DP,MBS,GBS,zero,"
      "recompute,precision,step_time_s,kv_heads,mlp,tied_embeddings,program,status,note\n"
      "a,48,8192,64,32768,51200,2048,dgx-a100,512,8,2,,1,32,4,1536,0,full,fp16,14.4,64,gelu,"
      "1,megatron-2021,measured,\n"
      "b,32,4096,32,14336,128256,8192,dgx-h100,64,1,1,2,1,32,1,1024,,,bf16,12.33,8,swiglu,0,"
      "megatron-core,measured,\"a, \"\"b\"\"\"\n";
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

FileParser run_files() {
  return {.name = "run-report",
          .samples = {{{"status.json",
                        "{\"state\": \"stopped\", \"step\": 7, \"loss\": 2.5, \"straggler\": "
                        "{\"rank\": 1, \"node\": \"n\", \"ratio\": 1.5}}"},
                       {"goodput.jsonl",
                        to_json_line({.kind = GoodputEvent::Kind::Start, .launched_s = 1}) + "\n" +
                            to_json_line({.time_s = 9, .step = 4, .steps_s = 5}) + "\n"},
                       {"metrics.jsonl", "{\"step\": 7, \"loss\": 2.5}\n"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const RunReport run = read_run(directory);
            report_text(run);
            report_json(run).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
          }};
}

FileParser profile_file() {
  Profile profile{.facts = {.first_step = 3, .last_step = 3, .step_s = {2}, .device = "cpu"}};
  TraceSpan matmul = spans::operation(1, "matmul 2x3x4", 0, 1, "forward 0", "layer 0");
  matmul.work = WorkKind::Matmul;
  matmul.flops = 48;
  matmul.bytes = 52;
  profile.ranks = {
      {0,
       "tp 0 cp 0 dp 0 pp 0",
       {spans::step(3, 0, 2), matmul, spans::caused(SpanKind::Kernel, 1, "gemm", 0.2, 0.9),
        spans::communication("pp < 1", 1, 2, "a 1")}}};
  const std::string text = chrome_trace(profile, step_exposures(profile.ranks));
  // One bracket more or less and it is refused.
  const std::string deep = std::string(63, '[') + std::string(63, ']');
  return {.name = "profile",
          .samples = {{{"profile.json", text}},
                      {{"profile.json", gzipped(text)}},
                      {{"profile.json", "{\"other\":" + deep + "," + text.substr(1)}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const ProfileAnalysis analysis =
                analyze(read_profile(directory / "profile.json"), "profile.json");
            profile_text(analysis);
            diff_text(compare_profiles(analysis, analysis));
            profile_json(analysis).dump(2, ' ', false,
                                        nlohmann::ordered_json::error_handler_t::replace);
          }};
}

FileParser tuning_cache() {
  return {
      .name = "tuning-cache",
      .samples = {{{"cache", "owner\tkey\tvalue\nowner\tother key\t1 2 3\nB200\tkey\tx\n"}}},
      .damaged = {},
      .read =
          [](const fs::path& directory) { TuningCache(directory / "cache", "owner").find("key"); },
      .refuses = false};
}

FileParser node_ledger() {
  const TemporaryDirectory scratch;
  const NodeLedger ledger(scratch / "nodes.json");
  ledger.add("nid000012", NodeTrouble::Slow, "matmul 61 % of the median", 1'772'366'400, 7);
  ledger.add("nid000013", NodeTrouble::Lost, "rank 3: \"killed\"", 1'772'366'400, 0.5);
  return {.name = "node-ledger",
          .samples = {{{"nodes.json", content_of(ledger.path())}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            for (const LedgerEntry& entry : parse_node_ledger(content_of(directory / "nodes.json")))
              if (!is_node_name(entry.node)) failure("accepted the node {}", entry.node);
          }};
}

FileParser memory_file() {
  const MemoryFile::Info info{.fingerprint = 5, .step = 7, .rank = 3, .after = 11};
  const TemporaryDirectory scratch;
  {
    const std::string text = "{\"step\": 7}", data = "the state";
    MemoryFile file(scratch / "rank-3-own-0", MemoryFile::bytes_for(text.size(), data.size()));
    std::copy(data.begin(), data.end(), reinterpret_cast<char*>(file.begin(text, data.size())));
    file.seal(info);
  }
  return {.name = "memory-file",
          .samples = {files_in(scratch.path())},
          .damaged = {},
          .read = [info](const fs::path& directory) {
            const std::string file = content_of(directory / "rank-3-own-0");
            if (!checked_content(std::as_bytes(std::span(file)), info))
              user_error("the copy in memory is not valid");
          }};
}

// ---- energy

// Damaged files of sysfs make a meter missing or its reading fail. They never throw, and what was
// read is a plausible number of joules.
void read_meters(const fs::path& root) {
  find_node_share(root);
  const FoundMeters found = find_meters({.root = root});
  bool refused = found.meters.size() != 6;
  for (const auto& meter : found.meters) {
    MeterTotal total(meter->identity());
    for (int i = 0; i < 3; ++i) try {
        total.add(meter->read(), 0.5 * i);
      } catch (const Failure& error) {
        total.add_failure(error.what(), 0.5 * i);
        refused = true;
      }
    if (!(total.joules() >= 0 && total.joules() < 20e3)) failure("{} J in 1 s", total.joules());
  }
  if (refused) user_error("a meter cannot be read");
}

FileParser energy_tree() {
  const std::string pm = "sys/cray/pm_counters/", zone = "sys/class/powercap/intel-rapl:0/",
                    card = "sys/class/drm/card0/device/", power = "sys/class/hwmon/hwmon1/";
  return {.name = "energy-tree",
          .samples = {{{pm + "energy", "2178501771 J 1734094386462336 us\n"},
                       {pm + "cpu_energy", "78501771 J 1734094386462336 us\n"},
                       {pm + "memory_energy", "8501771 J 1734094386462336 us\n"},
                       {pm + "power", "1240 W 1734094386462336 us\n"},
                       {pm + "freshness", "12345\n"},
                       {pm + "startup", "1733476187953442\n"},
                       {zone + "name", "package-0\n"},
                       {zone + "energy_uj", "262143328850\n"},
                       {zone + "max_energy_range_uj", "262143328850\n"},
                       {card + "vendor", "0x1002\n"},
                       {card + "uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.0\n"},
                       {card + "hwmon/hwmon2/power1_average", "300000000\n"},
                       {power + "name", "power_meter\n"},
                       {power + "power1_average", "600000000\n"},
                       {power + "power1_oem_info", "Module Power Socket 0\n"},
                       {"sys/devices/system/cpu/online", "0-127\n"},
                       {"sys/bus/pci/devices/0000:c1:00.0/vendor", "0x1002\n"},
                       {"sys/bus/pci/devices/0000:c1:00.0/class", "0x038000\n"}}},
          .damaged = {},
          .read = read_meters};
}

// The log-probabilities of a reference model.
FileParser reference() {
  const TemporaryDirectory scratch;
  const std::vector<double> values = {-1.5, -20.25, -3};
  write_reference({scratch / "a.safetensors", scratch / "unused"}, values);
  return {
      .name = "reference",
      .samples = {{{"a.safetensors", content_of(scratch / "a.safetensors")}}},
      .damaged = {},
      .read = [](const fs::path& directory) { load_reference(directory / "a.safetensors", 3); }};
}

// ---- campaigns

FileParser campaign_yaml() {
  FileParser parser{
      .name = "campaign-yaml", .samples = {}, .damaged = {}, .read = [](const fs::path& directory) {
        const CampaignGraph graph(parse_campaign(content_of(directory / "c.yaml"), "c.yaml"));
        for (const CampaignTask& task : graph.tasks())
          graph.overrides_of(task, [&](std::size_t best) {
            return graph.tasks_of(graph.node_of(graph.task(best)).of).front();
          });
      }};
  parser.samples.push_back(
      {{"c.yaml",
        "campaign: {dir: c, max_gpu_hours: 3}\nlaunch: {machine: h200, time: 2h, requeue: true}\n"
        "nodes:\n  a: {run: r.yaml, zip: {x: [1, 2], y: [a, {z: 3}]}, list: [{s: 1}, {s: 2}], "
        "filter: \"x * 2 < 8 and (s == 1 or not s > 3)\"}\n  b: {best: {of: a, order: highest}}\n"
        "  c: {like: b, from: b, at: [10, 20]}\n  d: {command: 'ls {c} {self}', after: [b]}\n"}});
  return parser;
}

FileParser campaign_records() {
  const CampaignSnapshot snapshot{.source = "c.yaml",
                                  .text = "campaign: {dir: c}\n",
                                  .working_directory = "/home/u",
                                  .local = true,
                                  .max_gpu_hours = 2,
                                  .configs = {{"r.yaml", "run: {dir: x}\n"}}};
  return {.name = "campaign-records",
          .samples = {{{"snapshot.json", to_json(snapshot)},
                       {"plan.json", to_json(TaskPlan{.fingerprint = "0f", .job_ids = {"41"}})},
                       {"progress.json", to_json(TaskProgress{.began_s = 3, .chosen = "a/b"})}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            snapshot_from_json(content_of(directory / "snapshot.json"), "s");
            plan_from_json(content_of(directory / "plan.json"), "p");
            progress_from_json(content_of(directory / "progress.json"), "t");
          }};
}

FileParser control_files() {
  return {.name = "control",
          .samples = {{{"control.json", to_json(ControlRequest{.set = {{"optimizer.lr", "1e-4"}},
                                                               .checkpoint = true})},
                       {"control.jsonl", to_line({3, 0, "train.log_every", "5"}) +
                                             to_line({9, 1, "optimizer.min_lr", "0"})}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const ControlRequest request =
                control_request_from_json(content_of(directory / "control.json"), "c");
            check_control(StageConfig{}, request);
            controlled(StageConfig{},
                       parse_control_history(content_of(directory / "control.jsonl"), "h"), 9);
          }};
}

}  // namespace

std::vector<FileParser> config_parsers() {
  return {run_config(),    overrides(),        model_yaml(),     machine_yaml(),
          hf_config(),     peft_config(),      peft_directory(), checkpoint(),
          checksums(),     measured_rows(),    memory_rows(),    trial_log(),
          tuning_cache(),  step_replay(),      topology(),       job_description(),
          node_ledger(),   run_files(),        memory_file(),    energy_tree(),
          reference(),     profile_file(),     program_yaml(),   step_intervals_yaml(),
          campaign_yaml(), campaign_records(), control_files()};
}

}  // namespace kintsugi
