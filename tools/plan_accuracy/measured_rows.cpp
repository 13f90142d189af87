#include "plan_accuracy/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "core/error.h"
#include "plan/costs/routing.h"

namespace kintsugi {
namespace {

// The word of a column, one of these; UserError otherwise.
std::string word_of(const CsvTable& table, std::size_t row, const char* column,
                    std::span<const std::string_view> words) {
  const std::string& word = table.at(row, column);
  if (std::find(words.begin(), words.end(), word) == words.end())
    user_error("{} line {}: {} is '{}': it must be {}, or empty", table.source(), table.line(row),
               column, word, joined(words.subspan(1)));
  return word;
}

constexpr std::string_view kRecompute[] = {"",          "none",         "full",
                                           "selective", "selective+sp", "selective-layers"};
constexpr std::string_view kPrecision[] = {"", "bf16", "fp16", "fp8"};
constexpr std::string_view kDispatch[] = {"", "all-gather", "all-to-all", "deep-ep", "hybrid-ep"};

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

void read_recompute(const std::string& recompute, const Program& program, Layout& l) {
  if (recompute == "full") {
    l.recompute = Recompute::Full;
  } else if (recompute.starts_with("selective")) {
    const bool second = program.selective == SelectiveKind::EverySecond;
    l.recompute = second ? Recompute::Full : Recompute::Selective;
    if (second) l.recompute_every = 2;
  }
}

// What the all-to-all of another program sends, relative to one row per visited rank: a row per
// choice (Megatron's alltoall), or one per visited node across the network (DeepEP, HybridEP).
double all_to_all_bytes(const std::string& dispatch, const ExpertsConfig& experts, const Layout& l,
                        const Machine& machine) {
  const double own = static_cast<double>(experts.count) / l.ep, rank = visit_chance(experts, own);
  if (dispatch != "deep-ep" && dispatch != "hybrid-ep")
    return static_cast<double>(experts.chosen) / l.ep / rank;
  const double on_node = std::max<double>(1, static_cast<double>(machine.node.gpus) / l.tp);
  if (l.expert_ranks() <= on_node) return 1;
  const double ranks = on_node * l.tp;  // of a node; each tensor rank sends its part of the tokens
  return visit_chance(experts, ranks * own) / (ranks * rank);
}

void read_experts(const std::string& dispatch, double ep, MeasuredRow& r, Layout& l) {
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
  r.program.software.all_to_all = all_to_all_bytes(dispatch, *experts, l, r.machine);
}

Machine machine_of(const CsvTable& table, std::size_t row) {
  const std::string& name = table.at(row, "machine");
  if (name.empty())
    user_error("{} line {}: no machine: fill in the column, or give --machine", table.source(),
               table.line(row));
  try {
    return load_measured_machine(name);
  } catch (const UserError& error) {
    user_error("{} line {}: {}", table.source(), table.line(row), error.what());
  }
}

}  // namespace

MeasuredRow read_row(const CsvTable& table, std::size_t row, const std::optional<Machine>& given) {
  MeasuredRow r;
  const auto number = [&](const char* column, double otherwise) {  // all are counts
    const double value = table.quantity(row, column, otherwise);
    if (value != std::floor(value))
      user_error("{} line {}: {} is {}: it must be an integer", table.source(), table.line(row),
                 column, value);
    return value;
  };
  const std::string recompute = word_of(table, row, "recompute", kRecompute),
                    precision = word_of(table, row, "precision", kPrecision),
                    dispatch = word_of(table, row, "dispatch", kDispatch);
  const double zero = number("zero", 1);
  if (zero != 0 && zero != 1 && zero != 2 && zero != 3)
    user_error("{} line {}: zero is {}: it must be 0, 1, 2 or 3", table.source(), table.line(row),
               zero);
  r.program = program_of_row(table, row);
  r.program.software.fp8 = precision == "fp8";
  r.machine = given ? *given : machine_of(table, row);
  r.with_device = table.at(row, "mem_kind").starts_with("nvidia-smi");
  r.job.precision = precision == "fp16" ? DType::F16 : DType::BF16;
  r.job.imbalance = table.quantity(row, "imbalance", kUsualImbalance);
  r.run = {.fused_attention = r.program.software.fused_attention,
           .gradient_bytes = r.program.software.gradient_wire,
           .compiled_loss = r.program.compiled_loss};
  r.run.by_operation = recompute == "selective";
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
  read_experts(dispatch, number("EP", 0), r, l);
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
                        (r.program.sequence_parallel || recompute == "selective+sp");
  read_recompute(recompute, r.program, l);
  const double chunks = number("VPP", 0), micro = number("MBS", 0);
  r.open_zero = std::isnan(table.number(row, "zero"));
  for (int v = 1; v <= 8; ++v)
    for (const int b : {1, 2, 4, 8}) {
      // A row with a micro-batch size and no chunks has one chunk.
      const bool open = chunks == 0 && micro == 0 && r.program.open_chunks && l.pp > 1;
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
  if (job.model.experts) {  // no formulas
    one.fits = true;
    return;
  }
  const auto stages = program_memory(row.program.memory, job, layout, row.run);
  double held = 0;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double bytes = device_bytes(row.program.memory, stages[i], layout, row.machine, true);
    if (bytes > held) fullest = i;
    held = std::max(held, bytes);
    const double shown =
        row.with_device ? device_bytes(row.program.memory, stages[i], layout, row.machine, false)
                        : stages[i].total();
    one.memory_gb = std::max(one.memory_gb, shown / 1e9);
  }
  if (row.program.memory == MemoryForms::Nanotron) {
    // Its rows give the memory of the first stage. They do not say whether matmul inputs were
    // gathered again in the backward; most runs without a pipeline kept them.
    MemoryRun run = row.run;
    run.gathers_again = layout.pp > 1;
    one.memory_gb = program_memory(row.program.memory, job, layout, run).front().total() / 1e9;
  }
  one.fits = held <= row.machine.gpu.memory_gb * 1e9;
  if (!one.fits)
    one.why = fmt::format("stage {} needs {:.1f} GB of {:.1f} GB", fullest, held / 1e9,
                          row.machine.gpu.memory_gb);
  const double m = static_cast<double>(micro_batches_per_step(layout, job.batch));
  if (const std::string why = refusal(row.program.memory, job, layout, m); !why.empty()) {
    one.fits = false;
    one.why = why;
  }
}

// The step time. Where the program has slow messages in at least half of the jobs of this size, the
// median run has them.
void predict_time(const MeasuredRow& row, const PlanJob& job, const Layout& layout,
                  RowPrediction& one) {
  one.evaluation = Planner(job, row.machine, row.program.software).timing(layout);
  const double node_gpus = static_cast<double>(row.machine.node.gpus);
  if (row.program.slow_nodes > 0 && layout.pp > 1 && layout.ranks() > node_gpus) {
    one.slow_chance = slow_chance(row.program, layout.ranks() / node_gpus);
    Software software = row.program.software;
    software.message_ms = row.program.slow_message_ms;
    const Evaluation slow = Planner(job, row.machine, software).timing(layout);
    one.slow_s = slow.step_s - one.evaluation.step_s;
    if (one.slow_chance >= 0.5) one.evaluation = slow;
  }
  one.step_s = one.evaluation.step_s;
  one.kind = step_kind(job, one.evaluation, row.machine);
  one.tokens_per_s_per_gpu =
      row.sequences * static_cast<double>(job.length) / (one.step_s * layout.ranks());
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
    RowPrediction one;
    predict_time(row, job, layout, one);
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
