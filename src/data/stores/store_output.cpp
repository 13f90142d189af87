#include "data/stores/store_output.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "data/provenance/file_hashes.h"
#include "data/stores/token_store.h"
#include "data/stores/token_writer.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Of each shard; while it is written also .lengths.
constexpr std::array<const char*, 5> kStoreEndings = {".bin", ".idx", ".mask", ".labels",
                                                      ".lengths"};

fs::path folder_of(const fs::path& prefix) {
  return prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
}

bool is_name_of(const fs::path& name, const fs::path& prefix) {
  return name == prefix.filename() || store_of_shard(name) == prefix.filename();
}

struct Source {
  std::vector<TokenShard> shards;
  std::vector<std::shared_ptr<const StoreInfo>> infos;  // of each shard
};

std::vector<Source> open_sources(const std::vector<std::string>& names) {
  std::vector<Source> sources;
  for (const std::string& name : names) {
    Source& source = sources.emplace_back();
    source.shards = open_token_store(name);
    source.infos = read_store_infos(source.shards);
    const TokenShard& first = sources.front().shards.front();
    const TokenShard& shard = source.shards.front();
    if (shard.type() != first.type())
      user_error("{} has {} tokens, {} has {}: only stores of the same type can be merged",
                 first.name(), to_string(first.type()), shard.name(), to_string(shard.type()));
  }
  return sources;
}

// The bytes of text in these shards; 0 (unknown) if some shards of a store are missing.
std::int64_t text_bytes(const std::vector<std::shared_ptr<const StoreInfo>>& infos) {
  std::map<const StoreInfo*, std::size_t> shards;
  for (const auto& info : infos) ++shards[info.get()];
  std::int64_t bytes = 0;
  for (const auto& [info, count] : shards) {
    if (count != info->shards.size()) return 0;
    bytes += info->bytes;
  }
  return bytes;
}

// Those of whole stores, in the order of their documents; false: unknown.
bool append_inputs(const Source& source, std::vector<InputFile>& inputs) {
  const auto& infos = source.infos;
  for (std::size_t i = 0; i < infos.size(); i += infos[i]->shards.size()) {
    const StoreInfo& info = *infos[i];
    if (info.shards.empty() || info.shards.size() > infos.size() - i) return false;
    for (std::size_t k = 0; k < info.shards.size(); ++k)
      if (infos[i + k] != infos[i]) return false;
    const std::vector<InputFile> own = inputs_in(info.made_from, source.shards[i].name());
    if (own.empty()) return false;
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  return true;
}

std::string kind_of(const StoreInfo& info) { return info.kind.empty() ? "text" : info.kind; }

// The common tokenizer of all sources; empty if one of them has no PREFIX.json.
std::optional<StoreInfo> common_info(const std::vector<Source>& sources) {
  std::optional<StoreInfo> common;
  std::int64_t bytes = 0;
  bool bytes_known = true, all_known = true;
  for (const Source& source : sources) {
    for (std::size_t i = 0; i < source.infos.size(); ++i) {
      const StoreInfo* info = source.infos[i].get();
      if (info == nullptr) {
        all_known = false;
        continue;
      }
      if (!common) common = *info;
      if (common->tokenizer != info->tokenizer)
        user_error(
            "{} was made with another tokenizer ({}) than {} ({}): their ids are not compatible",
            source.shards[i].name(), info->tokenizer_description,
            sources.front().shards.front().name(), common->tokenizer_description);
      if (common->kind != info->kind || common->labels != info->labels)
        user_error(
            "{} has examples of another kind ({}) than {} ({}), or other labels: only stores of "
            "one kind and the same labels in the same order can be merged",
            source.shards[i].name(), kind_of(*info), sources.front().shards.front().name(),
            kind_of(*common));
      common->longest = std::max(common->longest, info->longest);
      if (common->end_of_document != info->end_of_document) common->end_of_document.reset();
      if (common->chat_format != info->chat_format) common->chat_format.clear();
    }
    if (!all_known) continue;
    const std::int64_t own = text_bytes(source.infos);
    bytes_known &= own > 0;
    bytes += own;
  }
  if (!all_known) return std::nullopt;
  common->bytes = bytes_known ? bytes : 0;
  common->made_from.clear();
  std::vector<InputFile> inputs;
  const bool inputs_known = std::all_of(sources.begin(), sources.end(), [&](const Source& source) {
    return append_inputs(source, inputs);
  });
  if (inputs_known) common->made_from = with_inputs("", inputs);
  return common;
}

struct Buffers {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
};

void copy_sequence(const TokenShard& shard, std::int64_t sequence, TokenWriter& writer,
                   Buffers& buffers) {
  std::int64_t first = shard.sequence_begin(sequence), rest = shard.sequence_length(sequence);
  if (rest > shard.tokens() - first)
    user_error("{}.idx: sequence {} exceeds {}.bin; run kintsugi data verify", shard.name(),
               sequence, shard.name());
  while (rest > 0) {
    const auto count = std::min<std::int64_t>(rest, 1 << 16);
    buffers.ids.resize(static_cast<std::size_t>(count));
    shard.read(first, buffers.ids);
    if (std::any_of(buffers.ids.begin(), buffers.ids.end(), [](std::int32_t id) { return id < 0; }))
      user_error("{}: sequence {} has a negative id; run kintsugi data verify", shard.name(),
                 sequence);
    buffers.mask.resize(shard.has_mask() ? buffers.ids.size() : 0);
    if (shard.has_mask()) shard.read_mask(first, buffers.mask);
    writer.append(buffers.ids, buffers.mask);
    first += count;
    rest -= count;
  }
}

void copy_shard(const TokenShard& shard, TokenWriter& writer, bool labels,
                const std::function<void()>& after_document) {
  Buffers buffers;
  for (std::int64_t d = 0; d < shard.documents(); ++d) {
    const std::int64_t begin = shard.document_sequence(d), end = shard.document_sequence(d + 1);
    if (end < begin)
      user_error("{}.idx: document {} ends before it starts; run kintsugi data verify",
                 shard.name(), d);
    for (std::int64_t s = begin; s < end; ++s) {
      copy_sequence(shard, s, writer, buffers);
      if (s + 1 < end) writer.end_sequence();
    }
    const std::int32_t label = labels ? shard.label(d) : -1;
    end > begin ? writer.end_document(label) : writer.empty_document(label);
    after_document();
  }
}

void refuse_output(const fs::path& output, const std::vector<Source>& sources) {
  std::vector<fs::path> inputs;
  for (const Source& source : sources)
    for (const TokenShard& shard : source.shards) {
      if (fs::absolute(shard.name()).lexically_normal() == fs::absolute(output).lexically_normal())
        user_error("{} is one of the stores to merge: choose another --output", output.string());
      inputs.push_back(shard.name());
    }
  refuse_inputs_as_store(output, inputs);
}

// Whether the store writes a file of this name.
bool is_store_file(const fs::path& file, const fs::path& prefix) {
  const fs::path ending = file.extension();
  if (ending != ".json" &&
      (ending == ".lengths" ||
       std::find(kStoreEndings.begin(), kStoreEndings.end(), ending) == kStoreEndings.end()))
    return false;
  return fs::weakly_canonical(fs::absolute(file).parent_path()) ==
             fs::weakly_canonical(fs::absolute(prefix).parent_path()) &&
         is_name_of(file.stem(), prefix);
}

}  // namespace

std::unique_ptr<FileLock> lock_output(const fs::path& prefix) {
  std::string holder;
  std::unique_ptr<FileLock> lock = FileLock::try_take(with_ending(prefix, ".lock"), holder);
  if (!lock)
    user_error("another process is writing {} ({}): wait for it or choose another --output",
               prefix.string(), holder);
  return lock;
}

std::vector<fs::path> store_files(const fs::path& prefix, bool partial) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_of(prefix))) {
    const fs::path ending = entry.path().extension();
    if (std::find(kStoreEndings.begin(), kStoreEndings.end(), ending) == kStoreEndings.end())
      continue;
    fs::path name = entry.path().filename().stem();
    if ((name.extension() == ".partial") != partial) continue;
    if (partial) name = name.stem();
    if (is_name_of(name, prefix)) files.push_back(entry.path());
  }
  return files;
}

void refuse_input_name(const fs::path& input, const fs::path& prefix) {
  if (is_store_file(input, prefix) || is_store_file(fs::canonical(input), prefix))
    user_error(
        "the input {} has the name of an output file of the store {}: choose another --output",
        input.string(), prefix.string());
}

void refuse_inputs_as_store(const fs::path& prefix, const std::vector<fs::path>& inputs) {
  std::error_code ignored;
  if (!fs::is_directory(folder_of(prefix), ignored)) return;
  std::vector<fs::path> files = store_files(prefix, false);
  files.push_back(with_ending(prefix, ".json"));
  for (const fs::path& file : files) refuse_inputs_as_output("--output", file, {.inputs = inputs});
}

void refuse_foreign_description(const fs::path& prefix) {
  try {
    read_store_info(prefix);
  } catch (const UserError&) {
    user_error("{} exists but was not written by this command: choose another --output",
               with_ending(prefix, ".json").string());
  }
}

StoreOutput::StoreOutput(fs::path prefix, bool overwrite) : prefix_(std::move(prefix)) {
  refuse_foreign_description(prefix_);
  for (const char* ending : {".idx", ".bin", ".mask", ".labels", ".json", ".progress.json"})
    if (!overwrite && fs::exists(with_ending(prefix_, ending)))
      user_error("{} exists: replace it with --overwrite, or choose another --output",
                 with_ending(prefix_, ending).string());
  fs::create_directories(folder_of(prefix_));
  lock_ = lock_output(prefix_);
  TokenWriter::discard(prefix_);
}

// After publish() there are no temporary files.
StoreOutput::~StoreOutput() { TokenWriter::discard(prefix_); }

void StoreOutput::publish(const std::optional<StoreInfo>& info) {
  // Files of the replaced store must not be taken for those of the new one.
  for (const char* ending : {".json", ".progress.json", ".idx", ".mask", ".labels"})
    fs::remove(with_ending(prefix_, ending));
  TokenWriter::publish(prefix_);
  if (info) write_store_info(prefix_, *info);
  sync_directory(folder_of(prefix_));
}

StoreInfo merge_stores(const std::vector<std::string>& names, const fs::path& output,
                       bool overwrite, const ProgressCall& progress) {
  const auto sources = open_sources(names);
  refuse_output(output, sources);
  auto info = common_info(sources);
  StoreOutput files(output, overwrite);
  TokenWriter::Options options;
  options.labels = true;  // unless a shard has none
  std::int64_t total = 0;
  for (const Source& source : sources)
    for (const TokenShard& shard : source.shards) {
      total += shard.tokens();
      options.mask |= shard.has_mask();
      options.labels &= shard.has_labels();
    }
  StoreInfo result = info.value_or(StoreInfo{});
  {
    TokenWriter writer(output, sources.front().shards.front().type(), options);
    for (const Source& source : sources)
      for (const TokenShard& shard : source.shards)
        copy_shard(shard, writer, options.labels, [&] {
          if (progress) progress(writer.state().tokens, total);
        });
    result.shards = {writer.finish()};
    result.tokens = writer.state().tokens;
    result.documents = writer.state().documents;
  }
  files.publish(info ? std::optional(result) : std::nullopt);
  return result;
}

}  // namespace kintsugi
