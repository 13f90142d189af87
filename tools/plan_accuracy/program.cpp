#include "plan_accuracy/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/error.h"
#include "plan_accuracy/embedded.h"

namespace kintsugi {

// ---- the keys

constexpr Range kFactor = {.low = 0, .high = 1000, .low_open = true};
constexpr Range kPart = between(0, 1);
constexpr Range kMicroseconds = between(0, 1e6);

namespace {

template <class V>
void describe_int(V& v, const char* key, int& value, Range range) {
  std::int64_t wide = value;
  v(key, wide, range);
  value = static_cast<int>(wide);
}

// The keys that options may change.
template <class V>
void describe_properties(V& v, Program& p) {
  v("memory", p.memory);
  v("compiled_loss", p.compiled_loss);
  v("sequence_parallel", p.sequence_parallel);
  v("open_chunks", p.open_chunks);
  v("selective", p.selective);
  v("slow_nodes", p.slow_nodes, between(0, 1e6));
  v("slow_message_ms", p.slow_message_ms, kMicroseconds);
  Software& s = p.software;
  v("fused_attention", s.fused_attention);
  v("matmul_speed", s.matmul_speed, kFactor);
  v("attention_speed", s.attention_speed, kFactor);
  v("grouped_speed", s.grouped_speed, kFactor);
  v("host_us", s.host_us, kMicroseconds);
  v("collective_host_us", s.collective_host_us, kMicroseconds);
  v("host_wait_us", s.host_wait_us, kMicroseconds);
  v("pipeline_host_us", s.pipeline_host_us, kMicroseconds);
  v("elementwise", s.elementwise, kFactor);
  v("accumulation_bytes", s.accumulation_bytes, between(0, 1000));
  v("overlaps_tensor", s.overlaps_tensor);
  v("hides_tensor", s.hides_tensor, kPart);
  v("overlaps_data", s.overlaps_data, kPart);
  v("overlaps_sharded", s.overlaps_sharded, between(-1, 1));
  v("overlaps_gather", s.overlaps_gather, kPart);
  describe_int(v, "pipeline_stops", s.pipeline_stops, between(0, 100));
  v("scattered_pipeline", s.scattered_pipeline);
  v("first_message_ms", s.first_message_ms, kMicroseconds);
  v("hides_experts", s.hides_experts, kPart);
  describe_int(v, "layer_calls", s.layer_calls, between(1, 1000));
  v("gradient_wire", s.gradient_wire, between(0, 8));
  v("communication", s.communication, kFactor);
  v("step_ms", s.step_ms, kMicroseconds);
}

}  // namespace

template <class V>
void describe(V& v, ProgramOption& o) {
  v("name", o.name);
  v("set", o.set);
}

template <class V>
void describe(V& v, Program& p) {
  v("name", p.name);
  v("like", p.like);
  describe_properties(v, p);
  v("options", p.options);
}

namespace {

// Sets one key to the value of a text.
class SetKey {
 public:
  SetKey(const std::string& key, const std::string& text) : key_(key), text_(text) {}
  bool found() const { return found_; }

  template <class T>
  void operator()(const char* key, T& value, Range range = {}) {
    if (key_ != key) return;
    found_ = true;
    const T parsed = YamlScalar<T>::parse(text_);
    if constexpr (std::is_arithmetic_v<T>)
      if (!range.holds(static_cast<double>(parsed)))
        user_error("{} is {}: it must be {}", key_, text_, range.text());
    value = parsed;
  }

 private:
  const std::string& key_;
  const std::string& text_;
  bool found_ = false;
};

void apply(const ProgramOption& option, Program& program) {
  for (const auto& [key, text] : option.set) {
    SetKey set(key, text);
    describe_properties(set, program);
    if (!set.found()) user_error("option {}: a program has no '{}' to set", option.name, key);
  }
}

// The program that `like` names, before the keys of the file are read.
Program base_of(const YamlDocument& document, const std::string& source) {
  Program named;
  read_document(document, named);
  if (named.like.empty()) return {};
  for (const EmbeddedDescription& program : embedded_programs())
    if (program.name == named.like && source != "program " + program.name)
      return parse_program(program.yaml, "program " + program.name);
  user_error("{}: like: there is no other program '{}'", source, named.like);
}

}  // namespace

Program parse_program(const std::string& text, const std::string& source) {
  const YamlDocument document(text, source);
  Program program = base_of(document, source);
  read_document(document, program);
  for (const ProgramOption& option : program.options) {
    Program copy = program;
    try {
      apply(option, copy);
    } catch (const UserError& error) {
      user_error("{}: {}", source, error.what());
    }
  }
  return program;
}

std::vector<std::string> program_names() { return names_of(embedded_programs()); }

Program load_program(const std::string& name_or_path) {
  const auto [yaml, source] = find_description("program", embedded_programs(), name_or_path,
                                               "plan_accuracy --programs lists them");
  return parse_program(yaml, source);
}

Program with_options(Program program, const std::string& words) {
  std::istringstream text(words);
  for (std::string word; text >> word;) {
    const auto option = std::find_if(program.options.begin(), program.options.end(),
                                     [&](const ProgramOption& one) { return one.name == word; });
    if (option == program.options.end()) user_error("{} has no option '{}'", program.name, word);
    apply(*option, program);
  }
  return program;
}

Program program_of_row(const CsvTable& table, std::size_t row) {
  const std::string& name = table.at(row, "program");
  if (name.empty())
    user_error("{} line {}: no program: plan_accuracy --programs lists them", table.source(),
               table.line(row));
  try {
    return with_options(load_program(name), table.at(row, "options"));
  } catch (const UserError& error) {
    user_error("{} line {}: {}", table.source(), table.line(row), error.what());
  }
}

double slow_chance(const Program& program, double nodes) {
  return program.slow_nodes > 0 ? 1 - std::exp(-nodes / program.slow_nodes) : 0;
}

Machine load_measured_machine(const std::string& name_or_path) {
  static const Descriptions all = [] {
    Descriptions machines = embedded_measured_machines();
    machines.insert(machines.end(), embedded_machines().begin(), embedded_machines().end());
    return machines;
  }();
  const auto [yaml, source] = find_description("machine", all, name_or_path, kMachineHint);
  return parse_machine(yaml, source);
}

}  // namespace kintsugi
