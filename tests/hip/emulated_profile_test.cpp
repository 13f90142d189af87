// Profiles of the whole program on an emulated AMD GPU, with a stand-in for rocprofiler-sdk: every
// kernel is in the timeline by its name, within its operation and at its time.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/mpirun.h"
#include "support/paths.h"
#include "support/program_test.h"
#include "support/trace_events.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;
using testing::Not;
using Event = TraceEvents::Event;

const std::map<std::string, std::string> kOwnKernel = {
    {"matmul", "Cijk"},
    {"rope", "::rope_kernel<float"},
    {"adamw", "::adamw_kernel<float"},
    {"cross_entropy", "::cross_entropy_kernel<"}};
constexpr double kRounding = 1e-3;  // of microseconds: a nanosecond
constexpr const char* kOperationsOnly = "the profile shows operations only";

class EmulatedProfile : public ProgramTest {
 protected:
  void SetUp() override {
    program_ = built_program("kintsugi_emulated");
    if (program_.empty()) GTEST_SKIP() << "built without Boost.Context, which the emulator needs";
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("the dog number {} sleeps\n", i);
    directory_.write("text.txt", text);
    ASSERT_EQ(run_in_shell("'" + program_ +
                           "' data tokenize --input text.txt --tokenizer bytes --output corpus")
                  .code,
              0);
  }

  // Trains for four steps and profiles the last two.
  Outcome train(const std::string& variables, const std::string& arguments) {
    const std::string name = fmt::format("run-{}", ++runs_);
    directory_.write(
        name + ".yaml",
        fmt::format("run: {{dir: {}, seed: 3}}\nmodel: {{family: llama, ffn_size: 48, vocab_size: "
                    "256, hidden_size: 32, layers: 2, heads: 2, max_positions: 16}}\n"
                    "data: {{train: [{{path: corpus}}], sequence_length: 12, valid_fraction: 0}}\n"
                    "batch: {{global: 2, micro: 1}}\ndevice: hip\n"
                    "optimizer: {{lr: 1e-3, min_lr: 1e-3, warmup_steps: 2}}\n"
                    "train: {{steps: 4, checkpoint_every: 0, eval_every: 0}}\n"
                    "preflight: {{enabled: false}}\n",
                    name));
    return run_in_shell(
        fmt::format("{} '{}' train {}.yaml {}", variables, program_, name, arguments));
  }
  TraceEvents profile(const std::string& variables, std::string& error) {
    const std::string file = fmt::format("profile-{}.json", runs_ + 1);
    const Outcome outcome = train(variables, "--profile steps=3-4,file=" + file);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    error = outcome.out + outcome.error;
    return TraceEvents(nlohmann::json::parse(content_of(file)));
  }
  static std::string with_profiler(const std::string& mode = "") {
    return "KINTSUGI_STAND_IN_PROFILER=" + mode + " LD_LIBRARY_PATH=" + rocm_stand_in("profiler");
  }
  static std::vector<Event> of(const TraceEvents& trace, const std::string& category) {
    std::vector<Event> found;
    for (const auto& [lane, events] : trace.lanes)
      std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                   [&](const Event& event) { return event.category == category; });
    return found;
  }
  static int counts(const std::vector<Event>& events, const std::string& name) {
    return static_cast<int>(std::count_if(events.begin(), events.end(), [&](const Event& event) {
      return event.name == name || event.name.starts_with(name + " ");
    }));
  }
  static std::map<std::string, int> counts(const std::vector<Event>& events) {
    std::map<std::string, int> result;
    for (const Event& event : events) ++result[event.name];
    return result;
  }

 private:
  std::string program_;
  int runs_ = 0;
};

// Operations that were timed by events are the reference.
TEST_F(EmulatedProfile, ShowsKernelsWithinTheirOperations) {
  std::string error;
  const TraceEvents by_events = profile("", error);
  EXPECT_THAT(error, HasSubstr(kOperationsOnly));
  EXPECT_THAT(error, HasSubstr("librocprofiler-sdk.so is not installed (ROCm has it since 6.2)"));
  EXPECT_TRUE(of(by_events, "kernel").empty());
  for (const char* release : {"", "6.2"}) {
    SCOPED_TRACE(release);
    const TraceEvents trace = profile(with_profiler(release), error);
    trace.expect_nested();
    EXPECT_THAT(error, Not(HasSubstr(kOperationsOnly)));
    EXPECT_THAT(error, Not(HasSubstr("lost")));
    const std::vector<Event> operations = of(trace, "operation"), steps = of(trace, "host");
    EXPECT_EQ(counts(operations), counts(of(by_events, "operation")));
    std::map<std::int64_t, Event> by_number;
    for (const Event& operation : operations)
      by_number.emplace(operation.arguments.at("operation"), operation);
    double first = 1e30, last = 0;  // of the steps
    for (const Event& step : steps) {
      if (!step.name.starts_with("step ")) continue;
      first = std::min(first, step.begin);
      last = std::max(last, step.end);
    }
    std::map<std::string, int> kernels_of;  // operations
    const std::vector<Event> kernels = of(trace, "kernel");
    for (const Event& kernel : kernels) {
      ASSERT_TRUE(kernel.arguments.contains("operation")) << kernel.name;
      const auto operation = by_number.find(kernel.arguments.at("operation"));
      ASSERT_NE(operation, by_number.end()) << kernel.name;
      EXPECT_GE(kernel.begin, operation->second.begin - kRounding) << kernel.name;
      EXPECT_LE(kernel.end, operation->second.end + kRounding) << kernel.name;
      EXPECT_GE(kernel.begin, first) << kernel.name;
      EXPECT_LE(kernel.end, last) << kernel.name;
      EXPECT_GT(kernel.arguments.at("blocks"), 0);
      EXPECT_THAT(kernel.name, Not(HasSubstr(".kd")));
      const std::string name = operation->second.name.substr(0, operation->second.name.find(' '));
      ++kernels_of[name];
      const auto own = kOwnKernel.find(name);  // the name of its only kernel
      EXPECT_THAT(kernel.name, HasSubstr(own != kOwnKernel.end() ? own->second : "kintsugi::gpu::"))
          << name;
    }
    for (const auto& [name, kernel] : kOwnKernel)
      EXPECT_EQ(kernels_of[name], counts(operations, name)) << name;
    EXPECT_GT(kernels_of["rms_norm_forward"], 0);
    EXPECT_GT(kernels_of["swiglu_forward"], 0);
    EXPECT_EQ(counts(of(trace, "memset"), "__amd_rocclr_fillBufferAligned"),
              counts(operations, "fill"));
    EXPECT_FALSE(of(trace, "memcpy").empty());
    for (const Event& copy : of(trace, "memcpy"))
      if (copy.name.starts_with("Memcpy host")) {
        EXPECT_GT(copy.arguments.at("bytes"), 0);
      }
  }
}

TEST_F(EmulatedProfile, OnTwoRanks) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  std::string error;
  const TraceEvents trace =
      profile(std::string(kOpenMpi) + with_profiler() + " mpirun -np 2", error);
  EXPECT_THAT(error, Not(HasSubstr(kOperationsOnly)));
  std::map<int, int> kernels;
  for (const auto& [lane, events] : trace.lanes)
    for (const Event& event : events) kernels[lane.first] += event.category == "kernel";
  EXPECT_GT(kernels[0], 0);
  EXPECT_EQ(kernels[0], kernels[1]);
}

TEST_F(EmulatedProfile, SaysWhyItShowsOperationsOnly) {
  struct Case {
    const char *mode, *reason;
  };
  for (const auto& [mode, reason] :
       {Case{"short", "(version 1.0.0) has records of 176 bytes, but 184 were expected"},
        Case{"clock", "(version 1.0.0) are of another clock than it says"},
        Case{"nameless", "(version 1.0.0) has no names of kernels"},
        Case{"late", "(version 1.0.0) sees no kernels: HIP started before it"}}) {
    SCOPED_TRACE(mode);
    std::string error;
    const TraceEvents trace = profile(with_profiler(mode), error);
    EXPECT_THAT(error, HasSubstr(reason));
    const std::size_t said = error.find(kOperationsOnly);
    ASSERT_NE(said, std::string::npos) << error;
    EXPECT_EQ(error.find(kOperationsOnly, said + 1), std::string::npos) << error;
    EXPECT_TRUE(of(trace, "kernel").empty());
    EXPECT_GT(counts(of(trace, "operation"))["rms_norm_forward"], 0);
  }
}

TEST_F(EmulatedProfile, OrdinaryRunsDoNotLoadTheProfiler) {
  const Outcome ordinary = train(with_profiler("forbidden"), "");
  EXPECT_EQ(ordinary.code, 0) << ordinary.error;
  EXPECT_EQ(train(with_profiler("forbidden"), "--profile").code, 99);
}

}  // namespace
}  // namespace kintsugi
