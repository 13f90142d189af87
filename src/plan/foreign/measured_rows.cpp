#include "plan/foreign/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "plan/costs/routing.h"

namespace kintsugi {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}
struct RowText {
  std::string dataset, hardware, source, note, recompute, precision;
};

System system_of(const RowText& t, double zero, double tp) {
  if (has(t.dataset, "ultrascale") || has(t.source, "nanotron")) return System::Nanotron;
  if (has(t.dataset, "torchtitan") || has(t.source, "torchtitan")) return System::Torchtitan;
  if (has(t.dataset, "automodel")) return System::MegatronCore;  // the same kernels
  if (has(t.dataset, "mosaic") || has(t.source, "llm-foundry")) return System::Fsdp;
  // DeepSpeed's ZeRO 3 of 2021 had no tensor parallelism; with it the row is FSDP.
  if (zero == 3 && !has(t.hardware, "mi250"))
    return has(t.hardware, "a100") && has(t.precision, "fp16") && tp <= 1 ? System::DeepSpeedZero3
                                                                          : System::Fsdp;
  if (has(t.dataset, "bigscience") || has(t.dataset, "frontier") || has(t.hardware, "mi250") ||
      has(t.source, "deepspeed") || has(t.source, "neox"))
    return has(t.hardware, "a100") ? System::MegatronDeepSpeed2021 : System::MegatronDeepSpeed;
  const bool old = has(t.precision, "fp16") && has(t.hardware, "a100") && !has(t.note, "flash");
  const bool newer =
      has(t.recompute, "selective") || has(t.source, "2205.05198") || has(t.dataset, "korthikanti");
  if (old && newer) return System::Megatron2022;
  return old ? System::Megatron2021 : System::MegatronCore;
}

std::string machine_of(const RowText& t, System system) {
  const std::string& h = t.hardware;
  if (has(h, "lumi")) return "lumi-g";
  if (has(h, "mi250") || has(h, "frontier")) return "frontier";
  if (has(h, "jean zay")) return "jean-zay";
  if (has(h, "juwels")) return "juwels-booster";
  if (has(h, "snellius")) return has(h, "a100") ? "snellius-a100" : "snellius-h100";
  if (has(h, "leonardo")) return "leonardo";
  if (has(h, "perlmutter")) return "perlmutter";
  if (has(h, "alps")) return "alps";
  if (has(h, "gh200") || has(h, "jupiter")) return "jupiter";
  if (has(h, "mi300")) return "mi300x";
  if (has(h, "b200")) return "dgx-b200";
  if (has(h, "h200")) return "dgx-h200";
  if (has(h, "grand teton") || has(h, "500w")) return "grand-teton-h100";
  if (has(h, "h800")) return "dgx-h100";
  if (has(h, "h100")) return system == System::Nanotron ? "h100-cloud" : "dgx-h100";
  if (has(h, "a100")) return "dgx-a100";
  return "";
}

void fill_model(const CsvTable& table, std::size_t row, ModelConfig& c) {
  const auto whole = [&](const char* column, std::int64_t otherwise) {
    return static_cast<std::int64_t>(table.quantity(row, column, static_cast<double>(otherwise)));
  };
  if (const std::string& preset = table.at(row, "preset"); !preset.empty()) {
    c = load_preset(preset);
    return;
  }
  c.family = table.at(row, "mlp") == "swiglu" ? Family::Llama : Family::Gpt2;
  c.layers = whole("layers", 0);
  c.hidden_size = whole("hidden", 0);
  const std::int64_t usual = c.hidden_size % 128 == 0 ? c.hidden_size / 128 : 96;
  c.heads = whole("heads", usual);
  c.kv_heads = c.family == Family::Llama ? whole("kv_heads", c.heads) : c.heads;
  c.ffn_size = whole("ffn", 4 * c.hidden_size);
  c.vocab_size = whole("vocab", 51200);
  c.max_positions = whole("seq", 2048);
  c.tied = whole("tied_embeddings", 1) == 1;
  if (const std::int64_t experts = whole("experts", 0); experts > 0) {
    c.family = Family::Mixtral;
    c.kv_heads = whole("kv_heads", c.heads);
    c.experts = ExpertsConfig{.count = experts, .chosen = whole("chosen", 2)};
  }
  c.complete_and_check();
}

void read_recompute(const RowText& t, System system, Layout& l) {
  const bool titan = system == System::Torchtitan;
  if (has(t.recompute, "full")) {
    l.recompute = Recompute::Full;
  } else if (has(t.recompute, "selective") || has(t.recompute, "sac")) {
    // In torchtitan every second layer or every second matmul, in Megatron attention.
    l.recompute = titan ? Recompute::Full : Recompute::Selective;
    if (titan) l.recompute_every = 2;
  }
}

// Options of torch programs. Their matmuls and fused attention were tuned for the A100; on later
// GPUs they are slower than NVIDIA's own.
void read_options(const RowText& t, System system, Software& software) {
  const bool newer = has(t.hardware, "h100") || has(t.hardware, "h200");
  if (system == System::Fsdp && newer) {
    software.matmul_speed = 0.75;
    software.attention_speed = 0.6;
  }
  if (system != System::Torchtitan) return;
  if (newer) {
    software.matmul_speed = 0.9;
    software.attention_speed = 0.6;
  }
  if (has(t.note, "compile")) software.elementwise = 1.6;
  if (has(t.note, "async tp")) software.hides_tensor = 0.4;
  // Row-wise scales are applied outside the tensor cores.
  if (has(t.note, "rowwise")) software.matmul_speed *= 0.5;
}

// What the all-to-all of another program sends, relative to one row per visited rank: a row per
// choice (Megatron's alltoall), or one per visited node across the network (DeepEP, HybridEP).
double all_to_all_bytes(const std::string& dispatch, const ExpertsConfig& experts, const Layout& l,
                        const Machine& machine) {
  const double own = static_cast<double>(experts.count) / l.ep, rank = visit_chance(experts, own);
  if (!has(dispatch, "ep")) return static_cast<double>(experts.chosen) / l.ep / rank;
  const double on_node = std::max<double>(1, static_cast<double>(machine.node.gpus) / l.tp);
  if (l.expert_ranks() <= on_node) return 1;
  const double ranks = on_node * l.tp;  // of a node; each tensor rank sends its part of the tokens
  return visit_chance(experts, ranks * own) / (ranks * rank);
}

void read_experts(const std::string& dispatch, double ep, const RowText& t, MeasuredRow& r,
                  Layout& l) {
  if (ep <= l.tp) return;  // all are on the tensor ranks of a token
  l.ep = static_cast<int>(ep);
  const auto& experts = r.job.model.experts;
  if (!experts || experts->count % l.ep != 0 || l.ep % l.tp != 0 ||
      l.cp * l.dp % l.expert_ranks() != 0) {
    r.impossible = true;
    r.problem = fmt::format("EP {} does not divide the experts, or TP {} x CP {} x DP {}", l.ep,
                            l.tp, l.cp, l.dp);
    return;
  }
  if (dispatch == "all-gather") return;
  l.dispatch = Dispatch::AllToAll;
  r.software.all_to_all = all_to_all_bytes(dispatch, *experts, l, r.machine);
  if (has(t.note, "dualpipe")) r.software.hides_experts = 1;  // arXiv 2412.19437, section 3.2.1
  // Of Qwen3-30B's on 16 H100, Megatron hid 37 % (Megatron-Bridge, perf-moe-comm-overlap).
  if (has(t.note, "expert overlap")) r.software.hides_experts = 0.37;
}

}  // namespace

MeasuredRow read_row(const CsvTable& table, std::size_t row, const std::optional<Machine>& given) {
  MeasuredRow r;
  const RowText t{lower(table.at(row, "dataset")),   lower(table.at(row, "hardware")),
                  lower(table.at(row, "source")),    lower(table.at(row, "note")),
                  lower(table.at(row, "recompute")), lower(table.at(row, "precision"))};
  const auto number = [&](const char* column, double otherwise) {  // all are counts
    const double value = table.quantity(row, column, otherwise);
    if (value != std::floor(value))
      user_error("{} line {}: {} is {}: it must be an integer", table.source(), table.line(row),
                 column, value);
    return value;
  };
  const double zero = number("zero", 1);
  if (zero != 0 && zero != 1 && zero != 2 && zero != 3)
    user_error("{} line {}: zero is {}: it must be 0, 1, 2 or 3", table.source(), table.line(row),
               zero);
  const System system = r.system = system_of(t, zero, number("TP", 1));
  r.with_device = has(lower(table.at(row, "mem_kind")), "nvidia-smi");
  r.software = software_of(system);
  if (has(t.note, "flash")) r.software.fused_attention = true;
  read_options(t, system, r.software);
  const std::string name = machine_of(t, system);
  if (!given && name.empty()) {
    r.problem = fmt::format("unknown hardware '{}': give --machine", table.at(row, "hardware"));
    return r;
  }
  r.machine = given ? *given : load_machine(name);
  if (!given && name == "dgx-a100" && has(t.hardware, "40")) {
    r.machine.gpu.memory_gb = 42.9;
    r.machine.gpu.memory_gb_s = 1555;
  }
  if (!given && has(t.hardware, "h800")) r.machine.node.link_gb_s = 160;  // arXiv 2412.19437
  r.job.precision = has(t.precision, "fp16") ? DType::F16 : DType::BF16;
  r.job.imbalance = table.quantity(row, "imbalance", kUsualImbalance);
  r.software.fp8 = has(t.precision, "fp8");
  if (has(t.precision, "fp32 grads")) r.software.gradient_wire = 4;
  r.run.gradient_bytes = r.software.gradient_wire;
  // Since 2025 torchtitan also compiles the loss.
  r.run.by_operation =
      has(t.recompute, "selective") ? !has(t.recompute, "layer") : has(t.recompute, "sac");
  r.run.compiled_loss = has(t.note, "compile") && has(t.source, "2025");
  try {
    fill_model(table, row, r.job.model);
  } catch (const UserError& error) {
    r.problem = error.what();
    return r;
  }
  r.job.length = static_cast<std::int64_t>(number("seq", 2048));
  Layout l;
  l.tp = static_cast<int>(number("TP", 1));
  l.pp = static_cast<int>(number("PP", 1));
  l.cp = static_cast<int>(number("CP", 1));
  const double gpus = number("gpus", 0);
  l.dp = static_cast<int>(number("DP", std::round(gpus / (l.tp * l.pp * l.cp))));
  l.zero = static_cast<int>(zero);
  r.sequences = number("GBS", 0);
  if (l.dp < 1 || r.sequences < 1 || l.tp < 1 || l.pp < 1 || l.cp < 1 || r.job.length < 1) {
    r.problem = "gpus, GBS, seq and the layout must be given";
    return r;
  }
  const ModelConfig& c = r.job.model;
  read_experts(table.at(row, "dispatch"), number("EP", 0), t, r, l);
  if (!r.problem.empty()) return r;
  const bool divides = c.layers <= 10'000 && c.heads % l.tp == 0 &&
                       c.feed_forward_parts() % l.tp == 0 && c.vocab_size >= l.tp * l.tp &&
                       (c.kv_heads % l.tp == 0 || l.tp % c.kv_heads == 0) && l.pp <= c.layers;
  if (!divides || (l.cp > 1 && r.job.length % (2 * l.cp) != 0)) {
    r.impossible = true;
    r.problem =
        fmt::format("{} layers, {} heads and {} tokens do not divide by PP {}, TP {} and CP {}",
                    c.layers, c.heads, r.job.length, l.pp, l.tp, l.cp);
    return r;
  }
  l.sequence_parallel = l.tp > 1 && r.job.length / l.cp % l.tp == 0 &&
                        (system == System::Nanotron || system == System::Torchtitan ||
                         system == System::MegatronCore || has(t.recompute, "sp"));
  read_recompute(t, system, l);
  const double chunks = number("VPP", 0), micro = number("MBS", 0);
  r.open_zero = std::isnan(table.number(row, "zero"));
  for (int v = 1; v <= 8; ++v)
    for (const int b : {1, 2, 4, 8}) {
      // A row with a micro-batch size and no chunks has one chunk.
      const bool open = chunks == 0 && micro == 0 && system == System::MegatronCore && l.pp > 1;
      const std::int64_t stages = std::int64_t{l.pp} * v;
      // Embedding and head may count as a layer each.
      const bool even = c.layers % stages == 0 || (c.layers + 2) % stages == 0;
      if (v > 1 && (!open || !even)) continue;
      if (micro > 0 && b != 1) continue;
      Layout one = l;
      one.chunks = chunks > 0 ? static_cast<int>(chunks) : v;
      one.micro_batch = micro > 0 ? static_cast<std::int64_t>(micro) : b;
      if (one.micro_batch * one.dp > r.sequences && b > 1) continue;
      if (one.chunks * one.pp > r.job.model.layers) continue;
      if (one.pp > 1 && one.chunks > 1) one.schedule = PipelineKind::Interleaved;
      r.layouts.push_back(one);
    }
  if (r.layouts.empty()) r.problem = "more chunks than layers";
  return r;
}

namespace {

void judge_memory(const MeasuredRow& row, const PlanJob& job, const Layout& layout,
                  RowPrediction& one) {
  if (job.model.experts) {  // no formulas of other programs
    one.fits = true;
    return;
  }
  const auto stages = foreign_memory(row.system, job, layout, row.run);
  double held = 0;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double bytes = device_bytes(row.system, stages[i], layout, row.machine, true);
    if (bytes > held) fullest = i;
    held = std::max(held, bytes);
    const double shown = row.with_device
                             ? device_bytes(row.system, stages[i], layout, row.machine, false)
                             : stages[i].total();
    one.memory_gb = std::max(one.memory_gb, shown / 1e9);
  }
  if (row.system == System::Nanotron) {
    // Its rows give the memory of the first stage. They do not say whether matmul inputs were
    // gathered again in the backward; most runs without a pipeline kept them.
    const ForeignRun run{.gradient_bytes = row.run.gradient_bytes, .gathers_again = layout.pp > 1};
    one.memory_gb = foreign_memory(row.system, job, layout, run).front().total() / 1e9;
  }
  one.fits = held <= row.machine.gpu.memory_gb * 1e9;
  if (!one.fits)
    one.why = fmt::format("stage {} needs {:.1f} GB of {:.1f} GB", fullest, held / 1e9,
                          row.machine.gpu.memory_gb);
  const double m = static_cast<double>(micro_batches_per_step(layout, job.batch));
  if (const std::string why = refusal(row.system, job, layout, m); !why.empty()) {
    one.fits = false;
    one.why = why;
  }
}

}  // namespace

RowPrediction predict(const MeasuredRow& row) {
  RowPrediction best;
  if (!row.problem.empty()) {
    best.why = row.problem;
    best.impossible = row.impossible;
    return best;
  }
  for (const Layout& layout : row.layouts) {
    PlanJob job = row.job;
    const double per_micro_batch =
        static_cast<double>(layout.dp) * static_cast<double>(layout.micro_batch);
    const double m = std::max(1.0, std::ceil(row.sequences / per_micro_batch - 1e-9));
    job.batch = static_cast<std::int64_t>(m * per_micro_batch);
    Planner planner(job, row.machine, row.software);
    RowPrediction one;
    one.evaluation = planner.timing(layout);
    one.step_s = one.evaluation.step_s;
    one.tokens_per_s_per_gpu =
        row.sequences * static_cast<double>(job.length) / (one.step_s * layout.ranks());
    judge_memory(row, job, layout, one);
    if (!one.fits && row.open_zero && layout.zero == 1) {
      Layout sharded = layout;  // shard gradients too, as in the training of Llama 3
      sharded.zero = 2;
      one.memory_gb = 0;
      one.why = {};
      judge_memory(row, job, sharded, one);
    }
    const bool better = one.fits != best.fits ? one.fits : one.step_s < best.step_s;
    if (best.step_s == 0 || better) best = one;
  }
  return best;
}

}  // namespace kintsugi
