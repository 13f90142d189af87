#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kintsugi {

// An input of a stage, as it was when the stage read it.
struct InputFile {
  std::string file = {};  // as in the origin of a document
  std::string path = {};  // absolute
  std::uint64_t bytes = 0;
  std::string sha256 = {};
  std::string source = {};  // in the recipe; "": none
  // Of a token store: the documents that came from it, and where their texts are.
  std::int64_t documents = 0;
  std::string text_key = "text", prompt_key = {};
  bool operator==(const InputFile&) const = default;
};
nlohmann::ordered_json json_of(const std::vector<InputFile>& inputs);
std::vector<InputFile> input_files_of(const nlohmann::ordered_json& json);
// Those that a token store keeps in StoreInfo::made_from, in the order of its documents. None if
// it is of an older version; UserError that names the store if they are damaged.
std::vector<InputFile> inputs_in(const std::string& made_from, const std::string& store);
// Adds them, if they are known, and the program.
std::string with_inputs(const std::string& made_from, const std::vector<InputFile>& inputs);
// Without hashes and sources.
std::vector<InputFile> describe_inputs(const std::vector<std::filesystem::path>& inputs);

// Of the whole content, as of `bytes` bytes.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string sha256, xxh3;
};
// Nothing if `stop` returned true. `add`: bytes that were read.
std::optional<FileDigest> digest_of(const std::filesystem::path& file,
                                    const std::function<bool()>& stop = {},
                                    const std::function<void(std::size_t)>& add = {});

// Computes the SHA-256 of the inputs of a job while it reads them, on threads of its own: formats
// and continued jobs do not read every byte in order.
class InputHashes {
 public:
  // Inputs that already have their hash are not read.
  explicit InputHashes(std::vector<InputFile> inputs);
  ~InputHashes();  // stops
  InputHashes(const InputHashes&) = delete;
  InputHashes& operator=(const InputHashes&) = delete;

  std::vector<InputFile> inputs() const;  // with the hashes so far
  // Whether all are there, after at most this time. Rethrows the error of a thread.
  bool wait_for(double seconds) const;

 private:
  void work();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<InputFile> inputs_;
  std::size_t next_ = 0, left_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kintsugi
