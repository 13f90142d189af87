#include "launch/doctor/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <fstream>
#include <mutex>
#include <thread>

#include "comm/exchange.h"
#include "comm/socket.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Calls `expired` in another thread unless it is destroyed in time.
class TimeLimit {
 public:
  TimeLimit(double seconds, std::function<void()> expired)
      : thread_([this, seconds, expired = std::move(expired)] {
          std::unique_lock lock(mutex_);
          const auto limit = std::chrono::duration<double>(seconds);
          if (!changed_.wait_for(lock, limit, [this] { return over_; })) expired();
        }) {}
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

class Doctor {
 public:
  Doctor(World& hosts, World& devices, Backend& backend, const DoctorOptions& options)
      : hosts_(hosts),
        devices_(devices),
        backend_(backend),
        options_(options),
        begin_s_(options.now()),
        control_(hosts.split("doctor", 0, hosts.rank())),
        nodes_(gather_texts(*control_, options.node)) {
    facts_.rank = hosts.rank();
    facts_.node = options.node;
  }

  Diagnosis run() {
    timed("binding",
          [&] { facts_.binding = measure_binding(options_.threads, options_.gpu, options_.root); });
    timed("device", [&] {
      limited("device", Work::Own,
              [&] { facts_.device = measure_device(backend_, options_.device, options_.now); });
    });
    if (!options_.directory.empty()) timed("directory", [&] { check_directory(); });
    if (options_.hosts) timed("environment", [&] { check_host(); });
    if (hosts_.size() > 1) timed("links", [&] { check_links(); });
    const std::vector<std::string> texts = texts_at_first(*control_, to_json_text(facts_));
    for (const std::string& text : texts) diagnosis_.ranks.push_back(facts_of(text));
    if (first()) judge();
    diagnosis_.seconds.emplace_back("all", options_.now() - begin_s_);
    return std::move(diagnosis_);
  }

 private:
  bool first() const { return hosts_.rank() == 0; }
  bool leads_node() const { return nodes_.local[static_cast<std::size_t>(hosts_.rank())] == 0; }

  template <class F>
  void timed(const char* check, F&& work) {
    const double begin = options_.now();
    work();
    diagnosis_.seconds.emplace_back(check, options_.now() - begin);
  }

  // Work that hangs ends the job with the name of this node, which is at fault if the work is its
  // own: a rank that waits for another node is not.
  enum class Work { Own, WithOthers };
  template <class F>
  void limited(const char* check, Work kind, F&& work) {
    const TimeLimit limit(options_.limit_s, [&] {
      RankFailure failure{.text = fmt::format("node {}: the {} check did not end within {:.3g} s",
                                              options_.node, check, options_.limit_s)};
      if (kind == Work::Own) {
        failure.kind = FailureKind::Stuck;
        failure.culprits = {{hosts_.rank(), options_.node}};
      }
      if (options_.on_hang) options_.on_hang(failure);
    });
    work();
  }

  void note(Severity severity, const char* check, std::string text) {
    diagnosis_.findings.push_back({severity, check, std::move(text)});
  }

  // Rank 0 writes a file that the first rank of every node must see.
  void check_directory() {
    directory_ = text_of(*control_, 0, existing_part(options_.directory).string());
    const std::string name =
        ".kintsugi-doctor-" + text_of(*control_, 0, make_password().substr(0, 12));
    const fs::path seen = fs::path(directory_) / (name + "-seen");
    if (first()) limited("directory", Work::Own, [&] { std::ofstream(seen) << name; });
    control_->barrier();
    if (leads_node())
      limited("directory", Work::Own, [&] {
        const int node = nodes_.node[static_cast<std::size_t>(hosts_.rank())];
        facts_.directory = measure_directory(directory_, fmt::format("{}-{}", name, node),
                                             options_.file_bytes, options_.now);
        std::error_code error;
        facts_.directory.sees_first = fs::exists(seen, error);
      });
    control_->barrier();
    std::error_code ignored;
    if (first()) fs::remove(seen, ignored);
  }

  void check_host() {
    facts_.host = measure_host(options_.root);
    limited("libraries", Work::Own,
            [&] { facts_.amd = measure_amd(leads_node(), options_.environment, options_.root); });
    const auto leaders = hosts_.split("doctor nodes", leads_node() ? 0 : 1, hosts_.rank());
    if (leads_node())
      facts_.host.clock_offset_s = clock_offset(*leaders, options_.node, [] {
        using Clock = std::chrono::system_clock;
        return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
      });
    try {
      check_agreement(*control_, network_variables(environ));
    } catch (const SharedUserError& error) {
      note(Severity::Note, "environment", error.what());
    }
  }

  void check_links() {
    double used_s = options_.now() - begin_s_;
    control_->wait(control_->all_reduce(Tensor(&used_s, DType::F64, {1}), ReduceOp::Max));
    if (used_s > options_.budget_s)
      return note(Severity::Note, "links",
                  fmt::format("not measured: the other checks took {:.1f} s of {:.3g} s", used_s,
                              options_.budget_s));
    limited("links", Work::WithOthers, [&] {
      if (options_.all_reduce)
        if (const std::string wrong = check_all_reduce(devices_, backend_); !wrong.empty())
          note(Severity::Error, "links", wrong);
      if (options_.links.inside_nodes || options_.links.between_nodes)
        facts_.pairs =
            measure_links(devices_, *control_, backend_, nodes_, options_.links, options_.now);
    });
  }

  void judge() {
    const auto add = [&](Findings findings) {
      for (Finding& finding : findings) diagnosis_.findings.push_back(std::move(finding));
    };
    const std::vector<RankFacts>& ranks = diagnosis_.ranks;
    add(judge_binding(ranks, options_.share_gpu));
    add(judge_devices(ranks, options_.limits, options_.expected));
    add(judge_links(ranks, options_.limits, options_.expected));
    add(judge_network(options_.network, options_.allow_sockets, options_.network_library));
    add(judge_directory(ranks, directory_, options_.needed_bytes, options_.wanted_bytes));
    if (options_.hosts) add(judge_hosts(ranks, options_.limits));
    if (options_.hosts) add(judge_amd(ranks, options_.undriven_amd));
    std::stable_sort(diagnosis_.findings.begin(), diagnosis_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  }

  World& hosts_;
  World& devices_;
  Backend& backend_;
  const DoctorOptions& options_;
  const double begin_s_;
  std::unique_ptr<Communicator> control_;
  const NodeGroups nodes_;
  std::string directory_;
  RankFacts facts_;
  Diagnosis diagnosis_;
};

}  // namespace

std::size_t Diagnosis::count(Severity severity) const {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& finding) { return finding.severity == severity; }));
}

std::vector<std::string> Diagnosis::bad_nodes() const {
  std::vector<std::string> nodes;
  for (const Finding& finding : findings)
    if (finding.severity == Severity::Error)
      nodes.insert(nodes.end(), finding.nodes.begin(), finding.nodes.end());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

Diagnosis diagnose(World& hosts, World& devices, Backend& backend, const DoctorOptions& options) {
  return Doctor(hosts, devices, backend, options).run();
}

void refuse_errors(Communicator& group, const Diagnosis& diagnosis, const std::string& prefix) {
  std::string verdict;
  const Findings& findings = diagnosis.findings;
  const auto is_error = [](const Finding& f) { return f.severity == Severity::Error; };
  auto shown = std::find_if(findings.begin(), findings.end(),
                            [&](const Finding& f) { return is_error(f) && f.mistake; });
  const bool mistake = shown != findings.end();
  if (!mistake) shown = std::find_if(findings.begin(), findings.end(), is_error);
  if (shown != findings.end()) {
    const std::size_t errors = diagnosis.count(Severity::Error);
    verdict = to_message(
        {.kind = mistake ? FailureKind::Mistake : FailureKind::Error,
         .text = fmt::format("{}{}{}", prefix, shown->text,
                             errors > 1 ? fmt::format(" (and {} more errors)", errors - 1) : "")});
  }
  verdict = text_of(group, 0, verdict);
  if (!verdict.empty()) throw_shared(failure_from_message(verdict));
}

std::vector<std::string> exclude_bad_nodes(const Diagnosis& diagnosis, const NodeLedger& ledger,
                                           std::time_t now, double days) {
  const std::vector<std::string> nodes = diagnosis.bad_nodes();
  for (const std::string& node : nodes)
    for (const Finding& finding : diagnosis.findings)
      if (finding.severity == Severity::Error &&
          std::count(finding.nodes.begin(), finding.nodes.end(), node) > 0) {
        ledger.add(node, finding.kind, finding.text, now, days);
        break;
      }
  return nodes;
}

}  // namespace kintsugi
