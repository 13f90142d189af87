// How quickly a tokenizer encodes a text: MB/s for each core, and the same with several threads,
// each with a part of the text.
//   build/bench_tokenize --tokenizer gpt2/tokenizer.json --input corpus.txt [--threads 2]
#include <fmt/core.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizers/tokenizer.h"

using namespace kintsugi;

namespace {

constexpr std::size_t kDocument = 64 << 10;  // bytes, or up to the end of the line

// Cuts at line ends into documents of about the same size.
std::vector<std::string_view> documents_of(std::string_view text) {
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const std::size_t end = text.size() <= kDocument ? text.size() : text.find('\n', kDocument);
    const std::size_t length = std::min(end, text.size() - 1) + 1;
    documents.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return documents;
}

struct Share {
  std::size_t bytes = 0, tokens = 0;
  double seconds = 0, cpu_seconds = 0;
};

// Of this thread alone: other programs on the machine do not count.
double cpu_clock() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Share encode(Tokenizer& tokenizer, const std::vector<std::string_view>& documents,
             std::size_t first, std::size_t step, double seconds) {
  Share share;
  std::vector<std::int32_t> ids;
  const double cpu_begin = cpu_clock();
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (std::size_t i = first; i < documents.size(); i += step) {
      ids.clear();
      tokenizer.encode(documents[i], ids);
      share.bytes += documents[i].size();
      share.tokens += ids.size();
    }
    share.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (share.seconds < seconds);
  share.cpu_seconds = cpu_clock() - cpu_begin;
  return share;
}

void run(const std::string& name, const std::string& input, std::size_t threads, double seconds) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(name);
  const std::string text = read_text_file(input);
  const std::vector<std::string_view> documents = documents_of(text);
  if (documents.size() < threads) user_error("{} is too short for {} threads", input, threads);
  std::vector<Share> shares(threads);
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < threads; ++i)
    workers.emplace_back([&, i] {
      const std::unique_ptr<Tokenizer> own = tokenizer->clone();
      shares[i] = encode(*own, documents, i, threads, seconds);
    });
  for (std::thread& worker : workers) worker.join();
  double rate = 0, per_core = 0;
  Share total;
  for (const Share& share : shares) {
    rate += static_cast<double>(share.bytes) / share.seconds / 1e6;
    per_core += static_cast<double>(share.bytes) / share.cpu_seconds / 1e6;
    total.bytes += share.bytes;
    total.tokens += share.tokens;
  }
  fmt::print(
      "{}: {:.1f} MB/s with {} threads, {:.1f} MB/s per core (CPU time), {:.3f} bytes per token\n",
      tokenizer->description(), rate, threads, per_core / static_cast<double>(threads),
      static_cast<double>(total.bytes) / static_cast<double>(total.tokens));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How quickly a tokenizer encodes a text");
  std::string tokenizer, input;
  std::size_t threads = 1;
  double seconds = 2;
  app.add_option("--tokenizer", tokenizer, "As for kintsugi data encode")->required();
  app.add_option("--input", input, "A text file")->required();
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--seconds", seconds, "At least so long; whole passes")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(tokenizer, input, threads, seconds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
