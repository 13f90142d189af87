#include "data/provenance/file_hashes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20, kMostThreads = 4;
constexpr const char* kInputs = "input_files";

}  // namespace

Json json_of(const std::vector<InputFile>& inputs) {
  Json list = Json::array();
  for (const InputFile& input : inputs) {
    Json one = {{"file", input.file},
                {"path", input.path},
                {"bytes", input.bytes},
                {"sha256", input.sha256}};
    if (!input.source.empty()) one["source"] = input.source;
    if (input.documents > 0) one["documents"] = input.documents;
    if (input.text_key != "text") one["text_key"] = input.text_key;
    if (!input.prompt_key.empty()) one["prompt_key"] = input.prompt_key;
    list.push_back(std::move(one));
  }
  return list;
}

std::vector<InputFile> input_files_of(const Json& json) {
  std::vector<InputFile> inputs;
  for (const Json& one : json)
    inputs.push_back({.file = one.at("file").get<std::string>(),
                      .path = one.at("path").get<std::string>(),
                      .bytes = one.at("bytes").get<std::uint64_t>(),
                      .sha256 = one.at("sha256").get<std::string>(),
                      .source = one.value("source", ""),
                      .documents = one.value("documents", std::int64_t{0}),
                      .text_key = one.value("text_key", "text"),
                      .prompt_key = one.value("prompt_key", "")});
  return inputs;
}

std::vector<InputFile> inputs_in(const std::string& made_from, const std::string& store) {
  try {
    const Json json = Json::parse(made_from.empty() ? "{}" : made_from);
    return json.contains(kInputs) ? input_files_of(json.at(kInputs)) : std::vector<InputFile>();
  } catch (const nlohmann::json::exception& error) {
    user_error("{}.json does not say which files the store was made from ({}): restore it", store,
               error.what());
  }
}

std::string with_inputs(const std::string& made_from, const std::vector<InputFile>& inputs) {
  if (inputs.empty()) return made_from;
  Json json = Json::parse(made_from.empty() ? "{}" : made_from);
  json["program"] = fmt::format("{} ({})", program_version(), program_commit());
  json[kInputs] = json_of(inputs);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<InputFile> describe_inputs(const std::vector<fs::path>& inputs) {
  std::vector<InputFile> described;
  for (const fs::path& input : inputs)
    described.push_back({.file = input.string(),
                         .path = fs::absolute(input).lexically_normal().string(),
                         .bytes = fs::file_size(input),
                         .sha256 = {},
                         .source = {}});
  return described;
}

std::optional<FileDigest> digest_of(const fs::path& file, const std::function<bool()>& stop,
                                    const std::function<void(std::size_t)>& add) {
  const FileDescriptor descriptor = open_regular_file(file);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> block(kBlockBytes);
  FileDigest digest;
  Sha256 sha256;
  StreamHash xxh3;
  while (true) {
    if (stop && stop()) return std::nullopt;
    const ssize_t got = ::read(descriptor, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) user_error("cannot read {}: {}", file.string(), std::strerror(errno));
    if (got == 0) break;
    const auto bytes = static_cast<std::size_t>(got);
    sha256.update(block.data(), bytes);
    xxh3.update(block.data(), bytes);
    digest.bytes += bytes;
    if (add) add(bytes);
  }
  digest.sha256 = sha256.hex();
  digest.xxh3 = hex64(xxh3.digest());
  return digest;
}

InputHashes::InputHashes(std::vector<InputFile> inputs) : inputs_(std::move(inputs)) {
  for (const InputFile& input : inputs_) left_ += input.sha256.empty() ? 1 : 0;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t most = std::clamp<std::size_t>(cores / 8, 1, kMostThreads);
  for (std::size_t i = 0; i < std::min(most, left_); ++i) threads_.emplace_back([this] { work(); });
}

InputHashes::~InputHashes() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
}

std::vector<InputFile> InputHashes::inputs() const {
  const std::lock_guard lock(mutex_);
  return inputs_;
}

bool InputHashes::wait_for(double seconds) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return left_ == 0 || error_ != nullptr; });
  if (error_) std::rethrow_exception(error_);
  return left_ == 0;
}

void InputHashes::work() {
  try {
    while (true) {
      std::unique_lock lock(mutex_);
      while (next_ < inputs_.size() && !inputs_[next_].sha256.empty()) ++next_;
      if (next_ == inputs_.size()) return;
      const std::size_t own = next_++;
      const std::string path = inputs_[own].path;
      lock.unlock();
      const auto digest = digest_of(path, [this] { return stopping_.load(); });
      if (!digest) return;
      lock.lock();
      inputs_[own].sha256 = digest->sha256;
      --left_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

}  // namespace kintsugi
