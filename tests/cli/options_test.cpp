// Errors of the command line that are found before a command runs.
#include "cli/options.h"

#include <limits>

#include "cli/commands.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class EveryOption : public testing::Test {
 protected:
  EveryOption() {
    add_data_command(app_);
    add_train_command(app_);
    add_ctl_command(app_);
    add_generate_command(app_);
    add_chat_command(app_);
    add_serve_command(app_);
    add_eval_command(app_);
    add_classify_command(app_);
    add_embed_command(app_);
    add_model_command(app_);
    add_plan_command(app_);
    add_calibrate_command(app_);
    add_launch_command(app_);
    add_campaign_command(app_);
    add_doctor_command(app_);
    add_accept_command(app_);
    add_report_command(app_);
    add_watch_command(app_);
    add_dashboard_command(app_);
    add_energy_command(app_);
  }

  // Calls visit(name, option) with each option of each command.
  template <class Visit>
  void visit(CLI::App& command, const std::string& name, Visit&& visit_one) {
    for (CLI::Option* option : command.get_options())
      visit_one(name + " " + option->get_name(), *option);
    for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; }))
      visit(*inner, name + " " + inner->get_name(), visit_one);
  }

  static bool accepts(CLI::Option& option, const std::string& text) {
    option.clear();
    option.add_result(text);
    try {
      option.run_callback();
      return true;
    } catch (const CLI::ParseError&) {
      return false;
    }
  }
  // By CLI11's type name for numbers, which is followed by the text of the validator.
  static bool holds(const CLI::Option& option, const std::string& type) {
    return option.get_type_name().starts_with(type);
  }

  CLI::App app_{"", "kintsugi"};
};

TEST_F(EveryOption, OfANumberRefusesNanAndInfinity) {
  int seen = 0;
  visit(app_, "kintsugi", [&](const std::string& name, CLI::Option& option) {
    if (!holds(option, "FLOAT") && !holds(option, "INT") && !holds(option, "UINT")) return;
    ++seen;
    for (const char* text : {"nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999", ".nan", ""})
      EXPECT_FALSE(accepts(option, text)) << name << " " << text;
  });
  EXPECT_GT(seen, 25);
}

// No command accepts a negative count, size, rate or duration.
TEST_F(EveryOption, OfANumberRefusesWhatIsBelowZero) {
  visit(app_, "kintsugi", [&](const std::string& name, CLI::Option& option) {
    const bool number = holds(option, "FLOAT") || holds(option, "INT") || holds(option, "UINT");
    if (!number && !holds(option, "TIME") && !holds(option, "SIZE")) return;
    // These two are checked by the command itself: see CommandLine.RefusesNumbers.
    if (name.ends_with("--step") || name.ends_with("--backward-ratio")) return;
    EXPECT_FALSE(accepts(option, "-3")) << name;
  });
}

// CLI11 since 2.4 refuses to add such an option, so the program would not start.
TEST_F(EveryOption, IsNotNamedLikeAnArgumentOfTheCommandAround) {
  const auto check = [](const auto& self, CLI::App& command) -> void {
    for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) {
      for (const CLI::Option* argument : command.get_options()) {
        if (!argument->get_positional()) continue;
        for (const CLI::Option* option : inner->get_options())
          EXPECT_FALSE(option->check_lname(argument->get_name(true)))
              << inner->get_name() << " " << option->get_name();
      }
      self(self, *inner);
    }
  };
  check(check, app_);
}

class CommandLine : public ProgramTest {
 protected:
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
};

TEST_F(CommandLine, RefusesNumbers) {
  EXPECT_THAT(mistake("generate --checkpoint x --prompt a --temperature nan"),
              AllOf(HasSubstr("--temperature"), HasSubstr("'nan'")));
  EXPECT_THAT(mistake("calibrate --effort nan"), AllOf(HasSubstr("--effort"), HasSubstr("'nan'")));
  EXPECT_THAT(mistake("train x.yaml --dry-run --machine h200 --gpus -3"),
              AllOf(HasSubstr("--gpus"), HasSubstr("-3"), HasSubstr("at least 1")));
  EXPECT_THAT(mistake("data tokenize --input x --tokenizer bytes --output y --save-every -1s"),
              AllOf(HasSubstr("--save-every"), HasSubstr("'-1s'")));
  EXPECT_THAT(mistake("data prepare-chat --input x --tokenizer bytes --output y --max-length -1"),
              AllOf(HasSubstr("--max-length"), HasSubstr("-1")));
  EXPECT_THAT(mistake("plan tune x.yaml --trial-timeout 0s"), HasSubstr("--trial-timeout"));
  EXPECT_THAT(mistake("plan schedule --stages 4 --micro-batches 8 --backward-ratio -3"),
              HasSubstr("--backward-ratio"));
  for (const char* gpus : {"-3", "0", "nan", "1e30"})
    EXPECT_THAT(mistake("plan --model llama-8b --machine h200 --gpus " + std::string(gpus)),
                AllOf(HasSubstr("--gpus"), HasSubstr(gpus)));
}

TEST_F(CommandLine, PlansInFp8OnlyWhereTheGpuHasIt) {
  EXPECT_THAT(mistake("plan --model llama-1b --machine dgx-a100 --gpus 8 --precision fp8"),
              AllOf(HasSubstr("DGX A100"), HasSubstr("no fp8")));
  EXPECT_THAT(mistake("plan --model llama-1b --machine h200 --gpus 1 --precision fp9"),
              HasSubstr("'fp9'"));
  EXPECT_THAT(run_kintsugi("plan --help").out, HasSubstr("fp8"));
}

TEST_F(CommandLine, CalibratesPowerOnlyWhenAsked) {
  EXPECT_THAT(mistake("calibrate --power"), HasSubstr("--model"));
  EXPECT_THAT(mistake("calibrate --power --model no-such-model"), HasSubstr("no-such-model"));
  for (const char* option : {"--model llama-tiny", "--batch 2", "--length 8", "--seconds 5",
                             "--power-limits 300,400", "--clocks 1000", "--as-is", "--json"})
    EXPECT_THAT(mistake("calibrate " + std::string(option)), HasSubstr("--power")) << option;
  EXPECT_THAT(mistake("calibrate --power --model llama-tiny --output x.yaml"),
              HasSubstr("--output"));
  EXPECT_THAT(mistake("calibrate --power --model llama-tiny --as-is --clocks 900"),
              HasSubstr("--as-is"));
  EXPECT_THAT(mistake("calibrate --power --model llama-tiny --power-limits 300,-5"),
              AllOf(HasSubstr("--power-limits"), HasSubstr("-5")));
}

TEST_F(CommandLine, TakesUnitsAsConfigurationsDo) {
  const Outcome plain = run_kintsugi(
      "plan --model gpt2-124m --machine h200 --gpus 1 --batch 8 --length 1000 --tp 1 --best 1");
  const Outcome units = run_kintsugi(
      "plan --model gpt2-124m --machine h200 --gpus 1 --batch 8 --length 1k --tp 1 --best 1");
  EXPECT_EQ(plain.code, 0) << plain.error;
  EXPECT_EQ(units.code, 0) << units.error;
  EXPECT_EQ(units.out, plain.out);
}

TEST_F(CommandLine, SuggestsTheCommandThatWasMeant) {
  const std::string text = mistake("trian x");
  EXPECT_THAT(text, AllOf(HasSubstr("'trian'"), HasSubstr("did you mean 'train'")));
  EXPECT_THAT(text, Not(HasSubstr("expected")));
  EXPECT_THAT(mistake("data tokenise x"),
              AllOf(HasSubstr("kintsugi data"), HasSubstr("did you mean 'tokenize'")));
  EXPECT_THAT(mistake("frobnicate"), AllOf(HasSubstr("'frobnicate'"), HasSubstr("--help")));
  EXPECT_THAT(mistake("train x.yaml --sett a=1"),
              AllOf(HasSubstr("'--sett'"), HasSubstr("did you mean '--set'")));
  EXPECT_THAT(mistake("train x.yaml y.yaml"), HasSubstr("'y.yaml'"));
}

TEST_F(CommandLine, HelpDoesNotHideAnUnknownCommand) {
  for (const char* arguments : {"trian --help", "--help trian", "data tokenise --help"})
    EXPECT_THAT(mistake(arguments), HasSubstr("did you mean")) << arguments;
  EXPECT_EQ(run_kintsugi("data --help").code, 0);
}

// CLI11 would take the next argument as the value.
TEST_F(CommandLine, AnOptionWithoutItsValueIsNamed) {
  EXPECT_THAT(mistake("dashboard --token= runs"), HasSubstr("--token is empty"));
  EXPECT_THAT(mistake("report runs --output="), HasSubstr("--output is empty"));
  EXPECT_EQ(run_kintsugi("energy --json -- test --option=").code, 0) << "of another program";
}

// The value of an option may look like a command.
TEST_F(CommandLine, ValuesAreNoCommands) {
  EXPECT_THAT(mistake("generate --checkpoint train --prompt plan"), HasSubstr("train"));
}

class CommandLineOnRanks : public CommandLine {
 protected:
  // Runs `mpirun -np 3 kintsugi arguments`.
  Outcome on_ranks(const std::string& arguments) {
    const std::string command = "cd '" + directory_.path().string() +
                                "' && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                                "OMPI_MCA_rmaps_base_oversubscribe=1 mpirun -np 3 '" +
                                kintsugi_binary() + "' " + arguments +
                                " </dev/null >out.txt 2>error.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of("out.txt"),
            content_of("error.txt")};
  }
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
  }
  static int times(const std::string& text, const std::string& part) {
    int count = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
    return count;
  }
};

TEST_F(CommandLineOnRanks, AMistakeIsPrintedOnce) {
  const Outcome outcome = on_ranks("train run.yaml --sett a=1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(times(outcome.error, "error: kintsugi train has no option '--sett'"), 1)
      << outcome.error;
}

TEST_F(CommandLineOnRanks, ADryRunIsPrintedOnce) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: gpt2-tiny}\n"
                   "data: {train: [{path: corpus.txt}], sequence_length: 64}\n"
                   "batch: {global: 8, micro: 1}\ntrain: {steps: 100}\n");
  const Outcome outcome = on_ranks("train run.yaml --dry-run --machine h200");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(times(outcome.out, "It fits"), 1) << outcome.out;
}

}  // namespace
}  // namespace kintsugi
