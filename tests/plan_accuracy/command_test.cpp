// plan_accuracy as a program.
#include "support/program_test.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PlanAccuracyCommand : public ProgramTest {
 protected:
  Outcome run(const std::string& arguments) {
    return run_in_shell("'" + built_program("plan_accuracy") + "' " + arguments);
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    return outcome.error;
  }
};

TEST_F(PlanAccuracyCommand, RefusesNonsense) {
  EXPECT_THAT(mistake(""), HasSubstr("--programs"));
  EXPECT_THAT(mistake("nowhere.csv"), HasSubstr("nowhere.csv"));
  directory_.write("odd.csv", "layers\n1\n");
  EXPECT_THAT(mistake("odd.csv"), HasSubstr("layouts.csv or memory.csv"));
  directory_.write("none.csv", "layers,hidden,seq,program,GBS\n1,64,64,none,1\n");
  EXPECT_THAT(mistake("none.csv"), AllOf(HasSubstr("line 2"), HasSubstr("no program or file")));
  EXPECT_THAT(mistake("odd.csv --output odd.csv --overwrite"), HasSubstr("odd.csv"));
}

TEST_F(PlanAccuracyCommand, ListsThePrograms) {
  EXPECT_THAT(run("--programs").out, AllOf(HasSubstr("nanotron"), HasSubstr("options: hopper")));
}

// A program and a machine of the user's own.
TEST_F(PlanAccuracyCommand, TakesFiles) {
  directory_.write("mine.yaml", "name: mine\nlike: megatron-core\nstep_ms: 5000\n");
  directory_.write("rows.csv",
                   "layers,hidden,seq,program,machine,gpus,MBS,GBS\n"
                   "24,2304,2048,mine.yaml,dgx-h100,8,1,64\n");
  const Outcome rows = run("rows.csv --output out.csv");
  EXPECT_EQ(rows.code, 0) << rows.error;
  const std::string text = content_of("out.csv");
  EXPECT_THAT(text, HasSubstr(",predicted_step_time_s,"));
  EXPECT_THAT(text, HasSubstr(",64,5.3")) << "five seconds, and 0.3 for the layers";
}

// Memory rows have their own columns, by which the file is recognized.
TEST_F(PlanAccuracyCommand, EvaluatesMemory) {
  directory_.write("memory.csv",
                   "dataset,num_layers,hidden_size,num_attention_heads,seq_length,tokenizer,"
                   "global_batch_size,bf16,fp8_format,gpus_total,mem_max_allocated_bytes\n"
                   "a,12,512,8,1024,gpt2-bpe,32,True,,8,1000000000\n"
                   "a,12,512,8,1024,gpt2-bpe,32,True,e4m3,8,1000000000\n");
  const Outcome table = run("memory.csv --accuracy");
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("a                                  2           1 |"),
                               HasSubstr("     1  FP8\n")));
  EXPECT_EQ(run("memory.csv --output out.csv").code, 0);
  EXPECT_THAT(content_of("out.csv"),
              AllOf(HasSubstr("mem_max_allocated_bytes,predicted_bytes,predicted_why\n"),
                    HasSubstr(",FP8\n")));
}

}  // namespace
}  // namespace kintsugi
