#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"
#include "plan/machines/machine.h"
#include "plan/machines/software.h"
#include "plan/search/csv.h"

namespace kintsugi {

// Whose closed forms of memory hold (program_memory.h). DeepSpeed before 2023 did not shard the
// gradients with ZeRO 1.
enum class MemoryForms : std::uint8_t {
  Megatron,
  MegatronDeepSpeed,
  MegatronDeepSpeed2021,
  DeepSpeedZero3,
  Nanotron,
  Fsdp,
  Torchtitan
};
template <>
inline constexpr EnumWords<7> kEnumWords<MemoryForms> = {
    "megatron", "megatron-deepspeed", "megatron-deepspeed-2021", "deepspeed-zero3", "nanotron",
    "fsdp",     "torchtitan"};

// What a program recomputes if a row says `selective`.
enum class SelectiveKind : std::uint8_t { Attention, EverySecond };
template <>
inline constexpr EnumWords<2> kEnumWords<SelectiveKind> = {"attention", "every-second"};

// Keys of a program that an option of a run changes, and their values.
struct ProgramOption {
  std::string name = {};
  std::vector<std::pair<std::string, std::string>> set = {};
};

// Another training program with published measurements: a file of programs/.
struct Program {
  std::string name = {};
  std::string like = {};  // the program whose keys these change; empty: this engine's
  MemoryForms memory = MemoryForms::Megatron;
  bool compiled_loss = false;      // the loss is one kernel that keeps no copies of the logits
  bool sequence_parallel = false;  // wherever it divides; false: if the row says +sp
  bool open_chunks = false;        // micro-batch and chunks that a row does not give: the best
  SelectiveKind selective = SelectiveKind::Attention;
  // A job on n nodes has slow messages with probability 1 - exp(-n / slow_nodes); 0: never. Each
  // message between stages then takes slow_message_ms longer.
  double slow_nodes = 0;
  double slow_message_ms = 0;
  Software software = {};
  std::vector<ProgramOption> options = {};
};

// A built-in description (programs/*.yaml) or a file. UserError for unknown and invalid keys.
Program load_program(const std::string& name_or_path);
Program parse_program(const std::string& text, const std::string& source);
std::vector<std::string> program_names();
// The program as these options change it, given as words: "hopper compile". UserError for an option
// that it does not have.
Program with_options(Program program, const std::string& words);
// The probability that a job on this many nodes has slow messages.
double slow_chance(const Program& program, double nodes);

// The program of a row's columns `program` and `options`. UserError with the line.
Program program_of_row(const CsvTable& table, std::size_t row);

// A machine of these measurements (machines/*.yaml), one of kintsugi plan machines, or a file.
Machine load_measured_machine(const std::string& name_or_path);

}  // namespace kintsugi
