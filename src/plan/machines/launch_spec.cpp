#include "plan/machines/launch_spec.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_word(const std::string& text, std::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || others.find(c) != std::string_view::npos;
  });
}

bool is_variable(const std::string& name) {
  return is_word(name, "_") && !(name[0] >= '0' && name[0] <= '9');
}

constexpr std::string_view kOptionSigns = "-_=.,:/@+%&";
constexpr std::string_view kNameSigns = "-_.,/+@:";

void check_words(const std::vector<std::string>& words, std::string_view signs,
                 const std::string& source, const char* key, std::string_view start) {
  for (const std::string& word : words)
    if (!is_word(word, signs) || !word.starts_with(start))
      user_error("{}: launch.{}: '{}' is no {}: use letters, digits and {}", source, key, word,
                 start.empty() ? "name" : "option that starts with --", signs);
}

void check_name(const std::optional<std::string>& name, const std::string& source,
                const char* key) {
  if (name) check_words({*name}, kNameSigns, source, key, "");
}

// A later limit of the same partition and QoS would never be used if it allowed fewer nodes.
void check_limits(const std::vector<JobLimit>& limits, const std::string& source) {
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const JobLimit& limit = limits[i];
    if (limit.nodes < 1 || limit.time_h <= 0)
      user_error("{}: launch.limits[{}] needs nodes and time_h", source, i);
    for (const std::string& name : {limit.partition, limit.qos})
      if (!name.empty()) check_words({name}, kNameSigns, source, "limits", "");
    for (std::size_t j = 0; j < i; ++j)
      if (limits[j].partition == limit.partition && limits[j].qos == limit.qos &&
          limit.nodes <= limits[j].nodes)
        user_error("{}: launch.limits[{}].nodes is {}: list limits by increasing number of nodes",
                   source, i, limit.nodes);
  }
}

}  // namespace

void check_launch(const LaunchSpec& launch, const std::string& source) {
  check_name(launch.partition, source, "partition");
  check_name(launch.hint, source, "hint");
  check_name(launch.network, source, "network");
  check_name(launch.mpi, source, "mpi");
  check_name(launch.container.mpi, source, "container.mpi");
  if (launch.container.runtime == ContainerRuntime::Edf && !launch.container.binds.empty())
    user_error("{}: launch.container.binds: the runtime edf reads mounts from the image's file",
               source);
  check_words(launch.modules, kNameSigns, source, "modules", "");
  check_words(launch.slurm_options, kOptionSigns, source, "slurm_options", "--");
  check_words(launch.launcher_options, kOptionSigns, source, "launcher_options", "--");
  check_words(launch.container.options, kOptionSigns, source, "container.options", "--");
  check_words(launch.container.binds, kNameSigns, source, "container.binds", "");
  for (const auto* variables : {&launch.environment, &launch.multi_node_environment})
    for (const auto& [name, value] : *variables)
      if (!is_variable(name))
        user_error(
            "{}: launch.environment: '{}' is no name of a variable: use letters, digits "
            "and _",
            source, name);
  check_limits(launch.limits, source);
}

}  // namespace kintsugi
