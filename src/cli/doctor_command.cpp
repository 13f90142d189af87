#include <fmt/chrono.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/train/preflight.h"
#include "comm/launch_environment.h"
#include "comm/nccl/nccl_world.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/table.h"
#include "launch/slurm.h"
#include "plan/machines/machine.h"
#include "train/config/keys.h"

namespace kintsugi {
namespace {

struct DoctorArguments {
  std::string config, machine, directory, json, ledger, device = "auto", precision;
  std::string seconds = "5s", timeout = "60s";
  std::int64_t threads = 0;
  double slow = 0.85, days = 7;
  bool allow_sockets = false, exclude = false, overwrite = false;
  bool list = false;
  std::string forget, node, reason = "excluded by hand";
};

// Without the tokenizer, which need not exist yet.
std::optional<RunConfig> config_of(const DoctorArguments& arguments) {
  if (arguments.config.empty()) return {};
  return parse_run_config(read_text_file(arguments.config), arguments.config);
}

NodeLedger ledger_of(const DoctorArguments& arguments, const std::optional<RunConfig>& config) {
  if (!arguments.ledger.empty()) return NodeLedger(arguments.ledger);
  const char* shared = std::getenv("KINTSUGI_NODE_LEDGER");
  if (!config && arguments.directory.empty() && (shared == nullptr || *shared == '\0'))
    user_error(
        "which node ledger? Give --ledger FILE or --config run.yaml, or set KINTSUGI_NODE_LEDGER");
  return NodeLedger(node_ledger_path(config ? config->run.node_ledger.value_or("") : "",
                                     config ? config->run.dir : arguments.directory));
}

// ---- the ledger

std::string date_text(std::time_t time) {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(time));
}

void list_nodes(const NodeLedger& ledger) {
  const std::time_t now = std::time(nullptr);
  Table table({Column::text("node"), Column::text("kind"), Column::number("count"),
               Column::text("last (UTC)"), Column::text("until (UTC)"), Column::text("reason")});
  for (const LedgerEntry& entry : ledger.entries())
    table.add({entry.node, entry.kind, entry.count, date_text(entry.last),
               entry.excludes(now) ? date_text(entry.until) : "ended", entry.reason});
  if (!table.empty()) fmt::print("{}", table.text());
  const std::vector<std::string> excluded = ledger.excluded(now);
  fmt::print("{}: {}\n", ledger.path().string(),
             excluded.empty() ? "no node is excluded" : "exclude " + host_list(excluded));
}

// Returns false if the command is about this machine and not about the ledger.
bool work_on_ledger(const DoctorArguments& arguments) {
  if (!arguments.list && arguments.forget.empty() && arguments.node.empty()) return false;
  if (another_rank_reports()) return true;
  const NodeLedger ledger = ledger_of(arguments, config_of(arguments));
  if (!arguments.node.empty())
    ledger.add(arguments.node, NodeTrouble::User, arguments.reason, std::time(nullptr),
               arguments.days);
  if (!arguments.forget.empty() && !ledger.forget(arguments.forget))
    user_error("{} is not listed in {}", arguments.forget, ledger.path().string());
  list_nodes(ledger);
  return true;
}

// ---- the checks

ExpectedRates rates_of(const std::string& name, DType precision) {
  if (name.empty()) return {};
  const Machine machine = load_machine(name);
  return {.flops_per_s = machine.gpu.tflops(precision) * 1e12 * machine.gpu.gemm_efficiency,
          .node_bytes_per_s = machine.node.link_gb_s * 1e9,
          .network_bytes_per_s = machine.network.gb_s * 1e9,
          .equal_links = machine.node.module_gpus <= 1};
}

DoctorOptions options_of(const DoctorArguments& arguments, const std::optional<RunConfig>& config,
                         Job& job, Backend& backend) {
  const std::int64_t threads = config ? config->threads : arguments.threads;
  DoctorOptions options = options_of_rank(job, backend, threads_for(threads, job.world()));
  const bool gpu = !options.gpu.empty();
  const DType precision = !arguments.precision.empty() ? parse_precision(arguments.precision)
                          : config                     ? config->train.precision
                          : gpu                        ? DType::BF16
                                                       : DType::F32;
  options.share_gpu = config && config->comm.share_gpu;
  options.allow_sockets = arguments.allow_sockets || (config && config->comm.allow_sockets);
  options.limits.slow = arguments.slow;
  // CPU ranks may share cores with other programs: slow ones are warnings.
  options.limits.failed = gpu ? arguments.slow : 0;
  options.expected = rates_of(arguments.machine, precision);
  options.device.precision = precision;
  if (gpu) options.device = {precision, 4096, 4096, 5, 256 << 20};
  options.links.bytes = gpu ? 32 << 20 : 4 << 20;
  options.directory = !arguments.directory.empty() ? arguments.directory
                      : config                     ? config->run.dir
                                                   : "";
  const DeviceChoice device =
      config ? config->device : YamlScalar<DeviceChoice>::parse(arguments.device);
  if (device != DeviceChoice::Cpu) options.undriven_amd = why_undriven(GpuVendor::Amd);
  options.budget_s = parse_duration_s(arguments.seconds);
  options.limit_s = parse_duration_s(arguments.timeout);
  if (config && job.world().rank() == 0) expect_checkpoints(*config, options);
  return options;
}

// Kept alive until the job has handled an error: pending collectives may still use this memory.
struct DoctorParts {
  std::optional<RunConfig> config;
  std::unique_ptr<Backend> backend;
  DeviceWorld devices;
};

OutputRule rule_of(const DoctorArguments& arguments) {
  return {arguments.overwrite, {arguments.config, arguments.machine, arguments.ledger}};
}

void examine(const DoctorArguments& arguments, Job& job, DoctorParts& parts) {
  auto& [config, backend, devices] = parts;
  job.check_agreement({{"the build", build_id()}});
  DoctorOptions options;
  job.together([&] {
    config = config_of(arguments);
    const DeviceChoice device =
        config ? config->device : YamlScalar<DeviceChoice>::parse(arguments.device);
    const std::int64_t threads = config ? config->threads : arguments.threads;
    backend = make_backend(device, threads_for(threads, job.world()),
                           config ? config->gpu : GpuConfig{}, job.world().local_rank());
    options = options_of(arguments, config, job, *backend);
    if (job.world().rank() > 0) return;
    if (arguments.exclude) ledger_of(arguments, config);
    if (!arguments.json.empty()) check_output_file("--json", arguments.json, rule_of(arguments));
  });
  CommConfig comm = config ? config->comm : CommConfig{};
  comm.allow_sockets = true;  // judged below, after everything else was measured
  devices = make_device_world(job.world(), *backend, comm,
                              [&job](const RankFailure& failure) { job.abort(failure); });
  options.network = devices.network;
  options.network_library = nccl_library_name();
  World& world = devices.gpus ? *devices.gpus : job.world();
  const Diagnosis diagnosis = diagnose(job.world(), world, *backend, options);
  job.together([&] {
    if (job.world().rank() > 0) return;
    fmt::print("{}", report_text(diagnosis, options));
    if (!arguments.json.empty())
      write_output_file("--json", arguments.json, rule_of(arguments), report_json(diagnosis));
    if (!arguments.exclude || diagnosis.bad_nodes().empty()) return;
    const NodeLedger ledger = ledger_of(arguments, config);
    exclude_bad_nodes(diagnosis, ledger, std::time(nullptr), arguments.days);
    fmt::print("added to {}\n", ledger.path().string());
  });
  const auto group = job.world().split("verdict", 0, job.world().rank());
  refuse_errors(*group, diagnosis, "doctor: ");
}

void run_doctor(const DoctorArguments& arguments) {
  if (work_on_ledger(arguments)) return;
  Job job;
  DoctorParts parts;
  job.run([&] { examine(arguments, job, parts); });
}

void add_check_options(CLI::App& command, DoctorArguments& arguments) {
  const AddOption add(command);
  CLI::Option* config =
      add("--config", arguments.config,
          "The configuration of a run: its device, precision, directory and space for checkpoints");
  add("--machine", arguments.machine,
      "Compare with a machine's name (kintsugi plan machines) or YAML file");
  add("--dir", arguments.directory,
      "Write a test file in this directory (default: run.dir of --config)");
  add("--device", arguments.device, "auto (the default), cpu, cuda or hip",
      CLI::IsMember({"auto", "cpu", "cuda", "hip"}))
      ->excludes(config);
  add("--precision", arguments.precision,
      "Precision of the matmul (default: fp32 on cpu, bf16 on GPUs)");
  add("--threads", arguments.threads,
      "CPU threads per rank (default: the node's cores / its ranks)",
      whole_number(between(0, 1024)))
      ->excludes(config);
  add("--slow", arguments.slow,
      "Fraction of the other ranks' rate below which a rank is slow (default: 0.85)",
      real_number(between(0, 1)));
  add("--seconds", arguments.seconds, "Time budget; links are not measured when it is used up",
      TypeName{"TIME"}, duration(between(0, 3600)), kShowDefault);
  add("--timeout", arguments.timeout, "A check that takes longer on a rank ends the job",
      TypeName{"TIME"}, duration(between(1, 1e6)), kShowDefault);
  add("--allow-sockets", arguments.allow_sockets,
      "Accept that NCCL or RCCL uses TCP between nodes");
  add("--json", arguments.json, "Write all facts and findings to this file");
  add_overwrite_option(command, arguments.overwrite);
}

void add_ledger_options(CLI::App& command, DoctorArguments& arguments) {
  const AddOption add(command);
  add("--exclude", arguments.exclude, "Add the nodes that failed to the node ledger");
  add("--ledger", arguments.ledger,
      "The node ledger (default: run.node_ledger of --config, KINTSUGI_NODE_LEDGER, or nodes.json "
      "in run.dir)");
  CLI::Option* list = add("--nodes", arguments.list, "List the node ledger");
  CLI::Option* forget =
      add("--forget", arguments.forget, "Remove a node from the node ledger", TypeName{"NODE"});
  CLI::Option* node =
      add("--exclude-node", arguments.node, "Add a node to the node ledger", TypeName{"NODE"});
  add("--reason", arguments.reason, "With --exclude-node: why")->needs(node);
  add("--days", arguments.days, "With --exclude and --exclude-node: for how long (default: 7)",
      real_number(Range{.low = 0, .high = 36500, .low_open = true}));
  forget->excludes(node);
  for (CLI::Option* option : {list, forget, node})
    option->excludes(command.get_option("--exclude"));
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Check ranks, devices, links and file system before a run; name bad nodes");
  const auto arguments = std::make_shared<DoctorArguments>();
  add_check_options(*command, *arguments);
  add_ledger_options(*command, *arguments);
  command->footer(
      "Examples:\n"
      "  kintsugi doctor\n"
      "  srun -N16 --ntasks-per-node=4 kintsugi doctor --config run.yaml --machine leonardo\n"
      "  srun -N16 --ntasks-per-node=4 kintsugi doctor --config run.yaml --exclude\n"
      "\n"
      "The nodes that jobs should avoid:\n"
      "  kintsugi doctor --nodes --config run.yaml\n"
      "  kintsugi doctor --exclude-node nid001234 --reason 'GPU 3 fell off the bus' --days 14 "
      "--ledger nodes.json\n"
      "  kintsugi doctor --forget nid001234 --ledger nodes.json\n"
      "\n"
      "Exit codes: 0 no errors, 1 a device, node or file system is bad, 2 a mistake in the launch\n"
      "(binding, network) or the command. docs/doctor.md explains each check.");
  command->callback([arguments] { run_doctor(*arguments); });
}

}  // namespace kintsugi
