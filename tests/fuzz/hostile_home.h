#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>  // small_run.h needs it
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// What hostile_runs.cpp attacks: directories with inputs of each kind, in which it runs the
// program.

namespace fs = std::filesystem;

// The embedding has more than 64 KiB, so that no check of the ends of tensors sees its middle.
inline constexpr const char* kModel =
    "model: {family: llama, vocab_size: 256, hidden_size: 96, layers: 1, heads: 4, kv_heads: 2, "
    "ffn_size: 64, max_positions: 64}\n";
inline constexpr const char* kRest =
    "batch: {global: 4, micro: 2}\n"
    "optimizer: {lr: 0.004, warmup_steps: 1}\n"
    "train: {steps: 6, checkpoint_every: 2, eval_every: 0, keep_checkpoints: 0}\n"
    "device: cpu\n"
    "threads: 1\n";

inline std::string read(const fs::path& file) { return content_of(file); }

inline void write(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

struct Result {
  int code = -1;
  std::string command, text;  // standard output and error
  bool refused() const { return code == 2 && text.find("error: ") != std::string::npos; }
};

[[noreturn]] inline void complain(const Result& result, const std::string& what) {
  failure("{}\n  command: {}\n  exit code {}, output:\n{}", what, result.command, result.code,
          result.text);
}

// A directory with one input of each kind.
class Home {
 public:
  explicit Home(fs::path directory) : directory_(std::move(directory)) {}
  fs::path operator/(const fs::path& name) const { return directory_ / name; }

  // In the shell, in this directory or one below it; "$kintsugi" is the program.
  Result shell(const std::string& command, const std::string& folder = ".") const {
    static std::atomic<int> number = 0;
    const fs::path output =
        directory_.parent_path() / fmt::format("output-{}.txt", number.fetch_add(1));
    const int status = std::system(fmt::format("cd '{}' && kintsugi='{}' && export kintsugi && "
                                               "{{ {}\n}} >'{}' 2>&1 </dev/null",
                                               (directory_ / folder).string(), kintsugi_binary(),
                                               command, output.string())
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, command, read(output)};
  }
  Result run(const std::string& arguments, const std::string& folder = ".") const {
    return shell("timeout -k 5 60 \"$kintsugi\" " + arguments, folder);
  }
  Result must_run(const std::string& arguments, const std::string& folder = ".") const {
    Result result = run(arguments, folder);
    if (result.code != 0) complain(result, "this must succeed");
    return result;
  }

  // Every file below this directory: its content, or where a link points to.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      const std::string name = entry.path().lexically_relative(directory_).string();
      if (entry.is_symlink())
        found[name] = "link to " + fs::read_symlink(entry.path()).string();
      else if (entry.is_regular_file())
        found[name] = read(entry.path());
    }
    return found;
  }

 private:
  fs::path directory_;
};

// Makes the inputs once; every attack has a copy.
class Homes {
 public:
  Homes() {
    const Home home(original_);
    fs::create_directories(original_);
    write(home / "corpus.txt", small_corpus(400));
    write(home / "other.txt", small_corpus(150));
    std::string lines;
    for (int i = 0; i < 20; ++i)
      lines += fmt::format("{{\"text\": \"seven doors {}\", \"label\": \"{}\"}}\n", i, i % 2);
    write(home / "texts.jsonl", lines);
    write(home / "sources.txt", "the river\na stone\n");
    write(home / "references.txt", "the valley\na lantern\n");
    write(home / "keep.txt", "of the user\n");
    write(home / "run.yaml", run_file("corpus.txt"));
    write(home / "classes.yaml",
          std::string("run: {dir: classes}\nobjective: {kind: classification}\n"
                      "model: {init: run/checkpoints/latest}\n"
                      "data: {train: [{path: labelled}], sequence_length: 64}\n") +
              kRest);
    home.must_run("train run.yaml");
    home.must_run("data tokenize --input corpus.txt --tokenizer bytes --output store");
    home.must_run("data train-tokenizer --input corpus.txt --vocab 280 --output tok");
    home.must_run("data prepare-chat --input texts.jsonl --tokenizer bytes --output labelled");
    home.must_run("train classes.yaml");
    home.must_run("model convert run --output init");
    home.must_run(
        "calibrate --device cpu --threads 1 --models llama-tiny --effort 0.001 --output node.yaml");
    home.must_run("plan --machine node.yaml --model llama-tiny --gpus 1 --emit emitted.yaml");
  }
  static std::string run_file(const std::string& data) {
    return fmt::format(
        "run: {{dir: run, seed: 3}}\n{}"
        "data: {{train: [{{path: {}}}], sequence_length: 16, valid_fraction: 0.1}}\n{}",
        kModel, data, kRest);
  }
  Home copy() {
    const fs::path copy = directory_ / fmt::format("{}", ++copies_) / "home";
    fs::create_directories(copy.parent_path());
    fs::copy(original_, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return Home(copy);
  }
  void remove_copy() { fs::remove_all(directory_ / fmt::format("{}", copies_)); }

 private:
  TemporaryDirectory directory_;
  fs::path original_ = directory_ / "original";
  int copies_ = 0;
};

}  // namespace kintsugi
