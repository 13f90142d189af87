// Attacks the program with random seeds: outputs over inputs, links, two commands on one directory,
// ranks that see different files. Files of the user must stay as they are, and a mixture of two
// inputs must never be trained.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "fuzz/hostile_home.h"
#include "support/mpirun.h"

namespace kintsugi {
namespace {

using Random = std::mt19937_64;

template <class T>
const T& pick(const std::vector<T>& list, Random& random) {
  return list[random() % list.size()];
}

void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = read(file);
  const std::size_t at = text.find(from);
  if (at == std::string::npos) failure("{} has no '{}'", file.string(), from);
  write(file, text.replace(at, from.size(), to));
}

// Flips a bit in the last four fifths: behind headers.
void flip_bit(const fs::path& file, Random& random) {
  std::string text = read(file);
  const std::size_t head = text.size() / 5;
  text.at(head + random() % (text.size() - head)) ^= static_cast<char>(1 << random() % 3);
  write(file, text);
}

// ---- outputs over inputs

// A command that writes what its option names; {} is that name. Store prefixes are completed by an
// ending.
struct Writer {
  std::string command;
  std::vector<std::string> inputs;  // that could be named as output
  std::string kind;                 // the ending of a file, or "/" for a directory
  std::string ending = "";          // that the command adds
};
const std::vector<Writer>& writers() {
  static const std::vector<Writer> all = {
      {"embed --checkpoint run --input texts.jsonl --output {}", {"texts.jsonl"}, ".jsonl"},
      {"embed --checkpoint init --input texts.jsonl --output {}",
       {"init/model.safetensors"},
       ".safetensors"},
      {"classify --checkpoint classes --input texts.jsonl --output {}",
       {"texts.jsonl", "classes/metrics.jsonl"},
       ".jsonl"},
      {"eval translate --checkpoint run --sources sources.txt --references references.txt "
       "--examples sources.txt references.txt --shots 1 --max-tokens 2 --output {}",
       {"sources.txt", "references.txt"},
       ".txt"},
      {"launch --collect . --csv {}", {"run/config.yaml", "run/metrics.jsonl"}, ".csv"},
      {"launch --collect . --markdown {}", {"run/config.yaml"}, ".md"},
      {"plan schedule 1f1b --stages 2 --micro-batches 2 --svg {}", {"run.yaml"}, ".svg"},
      {"plan --machine node.yaml --model llama-tiny --gpus 1 --emit {}", {"node.yaml"}, ".yaml"},
      {"calibrate --device cpu --threads 1 --models llama-tiny --effort 0.001 --machine node.yaml "
       "--output "
       "{}",
       {"node.yaml"},
       ".yaml"},
      {"doctor --config run.yaml --json {}", {"run.yaml"}, ".json"},
      {"report run --output {}",
       {"run/status.json", "run/checkpoints/latest/config.json"},
       ".json"},
      {"report run --output {}", {"run/checkpoints/latest/README.md"}, ".md"},
      {"train run.yaml --set run.dir=profiled --profile steps=2,file={}", {"run.yaml"}, ".json"},
      {"data tokenize --input corpus.txt --tokenizer bytes --output {}", {"store"}, "", ".bin"},
      {"data merge store labelled --output {}", {"store", "labelled"}, "", ".bin"},
      {"data prepare-chat --input texts.jsonl --tokenizer bytes --output {}",
       {"labelled"},
       "",
       ".bin"},
      {"data train-tokenizer --input corpus.txt --vocab 270 --output {}", {"tok", "init"}, "/"},
      {"model convert init --output {}", {"init", "run", "run/checkpoints", "."}, "/"},
      {"model convert run --output {}", {"run", "run/checkpoints/step-00000006"}, "/"},
      {"model merge run/checkpoints/step-00000002 run/checkpoints/step-00000004 --output {}",
       {"run/checkpoints/step-00000004", "run"},
       "/"},
  };
  return all;
}

// Puts something that exists at the name of an output. Returns the name.
std::string occupied_output(const Home& home, const Writer& writer, Random& random) {
  const std::string input = pick(writer.inputs, random);
  const std::string name = "out" + (writer.kind == "/" ? "" : writer.kind);
  const fs::path file = home / (name + writer.ending);
  switch (random() % 7) {
    case 0:
      return input;
    case 1:
      return "./run/../" + input;
    case 2:
      fs::create_symlink(home / (input + writer.ending), file);
      return name;
    case 3:
      fs::create_symlink("keep.txt", file);
      return name;
    case 4:
      fs::create_directory(file);
      write(file / "keep.txt", "of the user\n");
      write(file / "config.json", "{}\n");  // a directory is no model because of that
      return name;
    case 5:
      fs::create_hard_link(home / "keep.txt", file);
      return name;
    default:
      write(file, "of the user\n");
      return name;
  }
}

// Without --overwrite whatever exists is refused; with it, inputs and directories of others are.
void outputs_over_inputs(const Home& home, Random& random) {
  const Writer& writer = pick(writers(), random);
  const std::string output = occupied_output(home, writer, random);
  const auto before = home.contents();
  const Result result = home.run(fmt::format(fmt::runtime(writer.command), output));
  const auto after = home.contents();
  for (const auto& [name, content] : before) {
    const auto now = after.find(name);
    if (now == after.end()) complain(result, name + " was removed");
    if (now->second != content) complain(result, name + " was changed");
  }
  if (!result.refused()) complain(result, output + " exists, and must be refused");
}

void overwrite_of_inputs(const Home& home, Random& random) {
  const Writer& writer = pick(writers(), random);
  std::string output = pick(writer.inputs, random);
  if (random() % 2 == 0) {
    const std::string link = "link" + (writer.kind == "/" ? "" : writer.kind);
    fs::create_symlink(home / (output + writer.ending), home / (link + writer.ending));
    output = link;
  }
  const auto before = home.contents();
  const Result result =
      home.run(fmt::format(fmt::runtime(writer.command), output) + " --overwrite");
  // A directory or file that the command does not read may be replaced.
  const auto after = home.contents();
  for (const auto& [name, content] : before) {
    const bool read_by_it =
        writer.command.find(name.substr(0, name.find('/'))) != std::string::npos;
    const auto now = after.find(name);
    if (read_by_it && (now == after.end() || now->second != content))
      complain(result, name + ", an input, was changed");
  }
}

// ---- links in a run directory

void links_in_a_run(const Home& home, Random& random) {
  static const std::vector<std::string> names = {"status.json", "config.yaml", "energy.json",
                                                 "data.json",   ".lock",       ".launch.lock"};
  const fs::path file = home / "run" / pick(names, random);
  fs::remove(file);
  fs::create_symlink(home / "keep.txt", file);
  const Result result = home.run("train run.yaml --set train.steps=8");
  if (read(home / "keep.txt") != "of the user\n")
    complain(result, "the run wrote through the link " + file.string());
}

// A run directory that is a link is the directory that it points to, and locked like it.
void run_directory_is_a_link(const Home& home, Random& random) {
  fs::create_directory_symlink("run", home / "alias");
  const bool swap = random() % 2 == 0;
  auto first = std::async(std::launch::async, [&] {
    return home.run(fmt::format("train run.yaml --set run.dir={} --set train.steps=60",
                                swap ? "alias" : "run"));
  });
  const Result second = home.run(
      fmt::format("train run.yaml --set run.dir={} --set train.steps=60", swap ? "run" : "alias"));
  const Result one = first.get();
  if (one.code != 0 && second.code != 0) complain(one, "both were refused");
  for (const Result& result : {one, second})
    if (result.code != 0 && !result.refused()) complain(result, "neither finished nor refused");
}

// ---- two commands on one directory

struct Race {
  Result first, second;
  bool one_won() const { return (first.code == 0) != (second.code == 0); }
};

Race race(const Home& home, const std::string& first, const std::string& second, Random& random) {
  const auto delay = std::chrono::milliseconds(random() % 120);
  const bool swap = random() % 2 == 0;
  auto other = std::async(std::launch::async, [&] { return home.run(swap ? second : first); });
  std::this_thread::sleep_for(delay);
  Result own = home.run(swap ? first : second);
  Result earlier = other.get();
  Race result{std::move(earlier), std::move(own)};
  if (swap) std::swap(result.first, result.second);
  if (result.first.code != 0 && result.second.code != 0)
    complain(result.first, "both failed; the other one:\n" + result.second.text);
  for (const Result& one : {result.first, result.second})
    if (one.code != 0 && !one.refused()) complain(one, "neither finished nor refused");
  return result;
}

std::string weights_of(const fs::path& run) {
  return read(run / "checkpoints/step-00000006/model.safetensors");
}

// The winner must have trained with its own settings.
void race_of_runs(const Home& home, Random& random, const std::string& first,
                  const std::string& second) {
  const std::vector<std::string> settings = {" --set run.dir=raced --set optimizer.lr=0.001",
                                             " --set run.dir=raced --set optimizer.lr=0.002"};
  const Race result = race(home, first + settings[0], second + settings[1], random);
  if (!result.one_won()) return;  // one after the other
  const bool first_won = result.first.code == 0;
  const Result& winner = first_won ? result.first : result.second;
  home.must_run(fmt::format("train run.yaml --set run.dir=alone --set optimizer.lr={}",
                            first_won ? "0.001" : "0.002"));
  if (weights_of(home / "raced") != weights_of(home / "alone"))
    complain(winner, "it finished with other weights than its settings give");
}

void train_and_train(const Home& home, Random& random) {
  race_of_runs(home, random, "train run.yaml", "train run.yaml");
}
void launch_and_launch(const Home& home, Random& random) {
  race_of_runs(home, random, "launch run.yaml --local", "launch run.yaml --local");
}
void train_and_launch(const Home& home, Random& random) {
  race_of_runs(home, random, "train run.yaml", "launch run.yaml --local");
}

// Checkpoints are saved and removed while the other command reads them.
void train_and_generate(const Home& home, Random& random) {
  static const std::vector<std::string> readers = {
      "generate --checkpoint run --prompt the --max-tokens 4",
      "embed --checkpoint run --input texts.jsonl --output embedded.jsonl", "report run",
      "model diff init run"};
  auto training = std::async(std::launch::async, [&] {
    return home.run("train run.yaml --set train.steps=80 --set train.keep_checkpoints=1");
  });
  for (int i = 0; i < 4; ++i) {
    const Result result = home.run(pick(readers, random));
    fs::remove(home / "embedded.jsonl");
    if (result.code != 0 && result.text.find("error: ") == std::string::npos &&
        result.command.find("diff") == std::string::npos)
      complain(result, "neither a result nor an error");
  }
  const Result result = training.get();
  if (result.code != 0) complain(result, "a reader must not end the run");
}

void tokenize_and_tokenize(const Home& home, Random& random) {
  const std::string command = "data tokenize --input corpus.txt --tokenizer bytes --output raced";
  race(home, command, command, random);
  home.must_run("data verify raced");
  if (read(home / "raced.bin") != read(home / "store.bin"))
    complain({}, "the store of two that wrote it differs from that of one");
}

void convert_and_convert(const Home& home, Random& random) {
  const std::string command = "model convert run --output raced";
  race(home, command, command, random);
  if (read(home / "raced/model.safetensors") != read(home / "init/model.safetensors"))
    complain({}, "the model of two that wrote it differs from that of one");
}

void train_and_move(const Home& home, Random& random) {
  const std::string command = random() % 2 == 0 ? "train" : "launch --local";
  auto training = std::async(std::launch::async, [&] {
    return home.run(command + " run.yaml --set run.dir=raced --set train.steps=2000");
  });
  while (!fs::exists(home / "raced/metrics.jsonl") &&
         training.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    continue;
  std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
  if (fs::exists(home / "raced/metrics.jsonl")) fs::rename(home / "raced", home / "moved");
  const Result result = training.get();
  if (!result.refused()) complain(result, "a moved run must end with an error");
  if (fs::exists(home / "raced")) complain(result, "it created its old directory again");
  if (!fs::exists(home / "moved/config.yaml")) complain(result, "moved/config.yaml is missing");
}

// ---- ranks that see different files

// How the files of rank 1 differ, what is run, and which words an error may use for it.
struct Difference {
  std::string name;
  std::string command;
  void (*change)(const Home& rank, Random& random);
  std::vector<std::string> words;
  // A file that is made from the files of rank 0 alone: those of rank 1 may differ without an
  // error, but the output must be the same.
  std::string output = {};
};

const std::vector<Difference>& differences() {
  static const std::string shared = " --set run.dir=../shared";
  static const std::string from_init = "train run.yaml --set 'model={init: init}'" + shared;
  static const std::vector<Difference> all = {
      {"configuration",
       "train run.yaml" + shared,
       [](const Home& rank, Random&) { replace_in(rank / "run.yaml", "seed: 3", "seed: 4"); },
       {"run.seed"}},
      {"text",
       "train run.yaml" + shared,
       [](const Home& rank, Random& random) { flip_bit(rank / "corpus.txt", random); },
       {"training data", "corpus.txt"}},
      {"held-out text",
       "train run.yaml --set 'data.valid=[{path: other.txt}]' --set "
       "data.valid_fraction=0 --set train.eval_every=2" +
           shared,
       [](const Home& rank, Random& random) { flip_bit(rank / "other.txt", random); },
       {"held-out data", "other.txt"}},
      {"store",
       "train run.yaml --set 'data.train=[{path: store}]' --set data.tokenizer=bytes" + shared,
       [](const Home& rank, Random& random) { flip_bit(rank / "store.bin", random); },
       {"training data", "store"}},
      {"tokenizer",
       "train run.yaml --set data.tokenizer=tok --set model.vocab_size=280" + shared,
       [](const Home& rank, Random&) {
         replace_in(rank / "tok/tokenizer.json", "endoftext", "endoffile");
       },
       {"tokenizer"}},
      {"initial weights",
       from_init,
       [](const Home& rank, Random& random) { flip_bit(rank / "init/model.safetensors", random); },
       {"weights", "model.init", "safetensors", "checksum"}},
      {"initial configuration",
       from_init,
       [](const Home& rank, Random&) {
         replace_in(rank / "init/config.json", "\"rms_norm_eps\": ", "\"rms_norm_eps\": 1");
       },
       {"model", "config.json"}},
      {"damaged checkpoint",
       "train run.yaml --set train.steps=8",
       [](const Home& rank, Random& random) {
         flip_bit(rank / "run/checkpoints/step-00000006/model.safetensors", random);
       },
       {"checkpoint", "damaged", "differ"}},
      {"checkpoint of another run",
       "train run.yaml --set train.steps=8",
       [](const Home& rank, Random&) {
         fs::remove_all(rank / "run");
         rank.must_run("train run.yaml --set run.seed=5");
       },
       {"checkpoint", "differ", "seed"}},
      {"weights in eval",
       "eval --checkpoint init --store store",
       [](const Home& rank, Random& random) { flip_bit(rank / "init/model.safetensors", random); },
       {"weights", "init", "safetensors", "checksum"}},
      {"weights in embed",
       "embed --checkpoint init --input texts.jsonl --output ../out.jsonl",
       [](const Home& rank, Random& random) { flip_bit(rank / "init/model.safetensors", random); },
       {"weights", "init", "safetensors", "checksum"},
       "out.jsonl"},
      {"input of embed",
       "embed --checkpoint init --input texts.jsonl --output ../out.jsonl",
       [](const Home& rank, Random&) { replace_in(rank / "texts.jsonl", "seven", "eight"); },
       {"texts.jsonl", "input", "differ"},
       "out.jsonl"},
  };
  return all;
}

void ranks_that_differ(const Home& home, Random& random) {
  const Difference& difference = pick(differences(), random);
  const fs::path folder = (home / ".").parent_path();
  for (const char* rank : {"rank0", "rank1"})
    fs::copy(folder, folder.parent_path() / rank,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const Home all(folder.parent_path()), first(folder.parent_path() / "rank0");
  const auto run = [&] {
    return all.shell(
        fmt::format("{} timeout -k 5 60 mpirun -np 2 sh -c 'cd rank$OMPI_COMM_WORLD_RANK && exec "
                    "\"$kintsugi\" \"$@\"' rank {}",
                    kOpenMpi, difference.command));
  };
  std::string expected;
  if (!difference.output.empty()) {
    run();
    expected = content_of(all / difference.output);
    fs::remove(all / difference.output);
  }
  difference.change(Home(folder.parent_path() / "rank1"), random);
  const std::string saved = weights_of(first / "run");
  const Result result = run();
  const std::string what = "different on the ranks: " + difference.name;
  if (result.code == 0 && !expected.empty()) {
    if (content_of(all / difference.output) != expected)
      complain(result, what + ", and the output has changed");
    return;
  }
  if (result.code == 0) complain(result, what + ", and not noticed");
  if (std::none_of(
          difference.words.begin(), difference.words.end(),
          [&](const std::string& word) { return result.text.find(word) != std::string::npos; }) ||
      result.text.find("error: ") == std::string::npos)
    complain(result, what + ", and the error does not say so");
  if (!weights_of(all / "shared").empty() || weights_of(first / "run") != saved ||
      fs::exists(first / "run/checkpoints/step-00000008"))
    complain(result, what + ", and something was trained");
}

// ----

struct Attack {
  const char* name;
  void (*run)(const Home& home, Random& random);
  int weight;  // how often, relative to the others
  bool needs_mpirun = false;
};
const std::vector<Attack>& attacks() {
  static const std::vector<Attack> all = {
      {"outputs over inputs", outputs_over_inputs, 6},
      {"overwriting inputs", overwrite_of_inputs, 3},
      {"links in a run directory", links_in_a_run, 2},
      {"a run directory that is a link", run_directory_is_a_link, 1},
      {"train and train", train_and_train, 2},
      {"launch and launch", launch_and_launch, 2},
      {"train and launch", train_and_launch, 1},
      {"train and generate", train_and_generate, 1},
      {"tokenize and tokenize", tokenize_and_tokenize, 1},
      {"convert and convert", convert_and_convert, 1},
      {"train and move", train_and_move, 2},
      {"ranks that differ", ranks_that_differ, 6, true},
  };
  return all;
}

// A list in which each attack appears as often as its weight says.
std::vector<const Attack*> selected(const std::string& only) {
  const bool mpirun = std::system("command -v mpirun > /dev/null 2>&1") == 0;
  std::vector<const Attack*> list;
  for (const Attack& attack : attacks())
    if (std::string(attack.name).find(only) != std::string::npos &&
        (mpirun || !attack.needs_mpirun))
      list.insert(list.end(), static_cast<std::size_t>(attack.weight), &attack);
  if (list.empty()) failure("no attack has '{}' in its name", only);
  return list;
}

int run_attacks(int trials, std::uint64_t seed, const std::string& only) {
  fmt::print("{} attacks, seed {}\n", trials, seed);
  std::vector<const Attack*> list = selected(only);
  Homes homes;
  struct Count {
    int trials = 0, failures = 0;
  };
  std::map<std::string, Count> counts;
  int failures = 0;
  for (int number = 0; number < trials; ++number) {
    Random random(seed + static_cast<std::uint64_t>(number));  // one attack can be repeated alone
    if (number % static_cast<int>(list.size()) == 0) std::shuffle(list.begin(), list.end(), random);
    const Attack& attack = *list[static_cast<std::size_t>(number) % list.size()];
    Count& count = counts[attack.name];
    ++count.trials;
    try {
      attack.run(homes.copy(), random);
    } catch (const std::exception& error) {
      ++count.failures;
      ++failures;
      fmt::print("FAILED: {} (attack {}): {}\n", attack.name, number + 1, error.what());
      std::fflush(stdout);
    }
    homes.remove_copy();
  }
  fmt::print("{} attacks, {} failed:\n", trials, failures);
  for (const auto& [name, count] : counts)
    fmt::print("  {:<32} {:>4} of {:>4} held\n", name, count.trials - count.failures, count.trials);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  CLI::App app{"Attacks the program: outputs over inputs, links, races, ranks that differ."};
  int trials = 100;
  std::uint64_t seed = std::random_device{}();
  std::string only;
  app.add_option("trials", trials, "Number of attacks")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "Random seed; the exact times of races still vary");
  app.add_option("--only", only, "Only attacks with this text in their name, such as 'train and'");
  CLI11_PARSE(app, argc, argv);
  try {
    return kintsugi::run_attacks(trials, seed, only);
  } catch (const std::exception& error) {
    fmt::print("FAILED (seed {}): {}\n", seed, error.what());
    return 1;
  }
}
