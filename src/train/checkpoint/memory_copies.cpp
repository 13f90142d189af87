#include "train/checkpoint/memory_copies.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/host/free_memory.h"
#include "core/units.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr int kGenerations = 2;

// Everything that a checkpoint has of this rank, as it is in memory.
std::vector<Tensor> state_tensors(Engine& engine) {
  const OptimizerState& state = engine.optimizer().state();
  const Sharding& sharding = engine.sharding();
  std::vector<Tensor> tensors = {sharding.weights(), sharding.unrounded_weights(), state.master(),
                                 state.ema()};
  for (const OptimizerState::RuleState& rule : state.rules())
    tensors.insert(tensors.end(), rule.slots.begin(), rule.slots.end());
  std::erase_if(tensors, [](const Tensor& one) { return !one || one.elements() == 0; });
  return tensors;
}

// For each rank the rank of another node that keeps its copies: the same one of the next node.
std::vector<int> partners_of(const std::vector<std::string>& nodes) {
  std::vector<std::vector<int>> members;
  std::map<std::string, std::size_t> index;
  std::vector<std::pair<std::size_t, std::size_t>> places;  // node and number on it, by rank
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::size_t node = index.emplace(nodes[rank], members.size()).first->second;
    if (node == members.size()) members.emplace_back();
    places.emplace_back(node, members[node].size());
    members[node].push_back(static_cast<int>(rank));
  }
  std::vector<int> partners;
  for (const auto& [node, number] : places) {
    const std::vector<int>& next = members[(node + 1) % members.size()];
    // One client each: with nodes of different sizes, some ranks have no partner.
    partners.push_back(members.size() > 1 && number < next.size() ? next[number] : -1);
  }
  return partners;
}

std::string memory_file_name(int rank, bool own, int generation) {
  return fmt::format("rank-{}-{}-{}", rank, own ? "own" : "copy", generation);
}

Tensor bytes_tensor(const std::byte* data, std::int64_t bytes) {
  return Tensor(const_cast<std::byte*>(data), DType::U8, {bytes});
}

}  // namespace

// A valid file that a rank sees on its node.
struct MemoryCopies::Listed {
  int holder = 0;  // the rank that sees it
  int rank = 0;    // whose state it is
  std::int64_t step = 0;
  std::uint64_t after = 0, series = 0;
};

MemoryCopies::MemoryCopies(Engine& engine, Options options)
    : engine_(engine),
      world_(engine.groups()[GroupKind::World]),
      options_(std::move(options)),
      directory_(options_.root /
                 fmt::format("kintsugi-{}-{}", ::getuid(), hex64(hash64(options_.run)))),
      tensors_(state_tensors(engine)) {
  for (const Tensor& tensor : tensors_) data_bytes_ += tensor.bytes();
  file_bytes_ = MemoryFile::bytes_for(options_.text_bytes, data_bytes_);
  fingerprint_ = hash64(fmt::format("{} {}", options_.configuration, world_.size()));
  find_partners();
}

void MemoryCopies::find_partners() {
  const auto ranks = static_cast<std::size_t>(world_.size());
  file_sizes_ = gather_values(world_, static_cast<std::int64_t>(file_bytes_));
  const auto expect = [&](int rank, bool of_node) {
    for (int i = 0; i < kGenerations; ++i) expected_.insert(memory_file_name(rank, of_node, i));
  };
  if (ranks == 1) return expect(0, true);
  const std::vector<std::string> nodes = gather_texts(world_, options_.node);
  const std::vector<int> partners = partners_of(nodes);
  partner_ = partners[world_.rank()];
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (partners[rank] == world_.rank()) client_ = static_cast<int>(rank);
  const auto on_this_node = [&](int rank) { return rank >= 0 && nodes[rank] == options_.node; };
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (on_this_node(rank)) expect(rank, true);
    if (on_this_node(partners[rank])) expect(rank, false);
    if (on_this_node(rank) && rank < world_.rank()) first_on_node_ = false;
  }
}

void MemoryCopies::begin_series() {
  std::random_device random;
  auto id = static_cast<std::int64_t>((std::uint64_t{random()} << 32) | random());
  world_.wait(world_.broadcast(Tensor(&id, DType::I64, {1}), 0));
  series_ = static_cast<std::uint64_t>(id);
}

void MemoryCopies::remove_strays() const {
  if (!first_on_node_) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory_, ignored))
    if (!expected_.contains(entry.path().filename().string())) fs::remove(entry.path(), ignored);
}

fs::path MemoryCopies::path_of(int rank, bool own, int generation) const {
  return directory_ / memory_file_name(rank, own, generation);
}

std::size_t MemoryCopies::reserved_bytes() const {
  std::size_t bytes = file_bytes_;
  if (client_ >= 0) bytes += static_cast<std::size_t>(file_sizes_[client_]);
  return kGenerations * bytes;
}

// Another user could have made it.
void MemoryCopies::check_directory() const {
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    failure("cannot create {}: {}", directory_.string(), std::strerror(errno));
  struct stat status {};
  if (::lstat(directory_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
      status.st_uid != ::getuid())
    failure("{} is not a directory of this user: remove it", directory_.string());
}

// All ranks of the node reserve memory at the same time. Files of an earlier process are used
// again.
void MemoryCopies::check_space() const {
  std::size_t needed = reserved_bytes();
  const auto exists = [&](int rank, bool own) {
    for (int i = 0; i < kGenerations; ++i) {
      std::error_code error;
      const std::uintmax_t size = fs::file_size(path_of(rank, own, i), error);
      const auto wanted = static_cast<std::uintmax_t>(file_sizes_[rank]);
      if (!error && size == wanted) needed -= wanted;
    }
  };
  exists(world_.rank(), true);
  if (client_ >= 0) exists(client_, false);
  needed *= static_cast<std::size_t>(options_.node_ranks);
  struct statvfs space {};
  if (::statvfs(directory_.c_str(), &space) != 0)
    failure("cannot read the size of {}: {}", directory_.string(), std::strerror(errno));
  const std::size_t free = std::min<std::size_t>(space.f_bavail * space.f_frsize, free_memory());
  if (needed > free)
    failure("the ranks of a node need {} in {}, and {} is free",
            format_bytes(static_cast<double>(needed)), options_.root.string(),
            format_bytes(static_cast<double>(free)));
}

void MemoryCopies::open(std::int64_t step) {
  begin_series();
  saves_ = 0;
  together(world_, [&] {
    check_directory();
    if (!restored_) remove_strays();  // otherwise they may be all that is left of this state
  });
  together(world_, [&] { check_space(); });
  together(world_, [&] {
    for (int i = 0; i < kGenerations; ++i)
      own_.emplace_back(path_of(world_.rank(), true, i), file_bytes_);
    for (int i = 0; i < kGenerations && client_ >= 0; ++i)
      received_.emplace_back(path_of(client_, false, i),
                             static_cast<std::size_t>(file_sizes_[client_]));
  });
  for (std::vector<MemoryFile>* files : {&own_, &received_})
    for (MemoryFile& file : *files)
      if (const auto info = file.info();
          info && (info->fingerprint != fingerprint_ || info->step > step))
        file.invalidate();
}

void MemoryCopies::give_up() {
  for (std::vector<MemoryFile>* files : {&own_, &received_})
    for (MemoryFile& file : *files) file.invalidate();
  begin_series();
}

namespace {

// The file whose copy is older or not valid.
MemoryFile& older(std::vector<MemoryFile>& files) {
  const auto step_of = [](const MemoryFile& file) {
    const auto info = file.info();
    return info ? info->step : -1;
  };
  return *std::ranges::min_element(
      files, [&](const MemoryFile& a, const MemoryFile& b) { return step_of(a) < step_of(b); });
}

}  // namespace

void MemoryCopies::save(const TrainerState& state, const std::string& checkpoint) {
  engine_.sharding().finish_weights();
  if (saves_++ == 1) remove_strays();  // all ranks have finished their first copy
  MemoryFile& file = older(own_);
  together(world_, [&] {
    Backend& backend = engine_.backend();
    const std::string text = state_to_json(state, engine_.options().precision, -1);
    if (text.size() > options_.text_bytes)
      failure("the trainer's state has {}, and {} are reserved for it",
              format_number(static_cast<std::int64_t>(text.size()), "byte"), options_.text_bytes);
    std::byte* to = file.begin(text, data_bytes_);
    backend.synchronize();  // offloaded state may still be in flight
    for (const Tensor& tensor : tensors_) {
      backend.download(to, tensor);
      to += tensor.bytes();
    }
    file.seal({.fingerprint = fingerprint_,
               .step = state.step,
               .rank = world_.rank(),
               .after = hash64(checkpoint),
               .series = series_});
  });
  Communicator::Work sending, receiving;
  const auto whole = [](MemoryFile& one) {
    return bytes_tensor(one.bytes().data(), static_cast<std::int64_t>(one.bytes().size()));
  };
  if (client_ >= 0) {
    MemoryFile& received = older(received_);
    received.invalidate();
    receiving = world_.receive(whole(received), client_);
  }
  if (partner_ >= 0) sending = world_.send(whole(file), partner_);
  if (client_ >= 0) world_.wait(receiving);
  if (partner_ >= 0) world_.wait(sending);
}

// ---- after a restart

// Each rank lists the files on its node: those of any rank, since the ranks may have moved.
std::vector<MemoryCopies::Listed> MemoryCopies::list_all() {
  std::string own;
  std::error_code error;
  struct stat status {};
  const bool ours = ::lstat(directory_.c_str(), &status) == 0 && status.st_uid == ::getuid();
  if (ours)
    for (const auto& entry : fs::directory_iterator(directory_, error)) {
      int rank = -1;
      if (std::sscanf(entry.path().filename().c_str(), "rank-%d-", &rank) != 1) continue;
      if (rank < 0 || rank >= world_.size()) continue;
      const auto size = static_cast<std::size_t>(file_sizes_[rank]);
      const auto info = MemoryFile::peek(entry.path(), size);
      if (info && info->fingerprint == fingerprint_ && info->rank == rank)
        own += fmt::format("{} {} {} {}\n", rank, info->step, info->after, info->series);
    }
  std::vector<Listed> all;
  const std::vector<std::string> texts = gather_texts(world_, own);
  for (int holder = 0; holder < world_.size(); ++holder) {
    std::istringstream lines(texts[holder]);
    for (Listed one{.holder = holder}; lines >> one.rank >> one.step >> one.after >> one.series;)
      all.push_back(one);
  }
  return all;
}

MemoryCopies::Found MemoryCopies::newest_complete(const std::vector<Listed>& all, std::int64_t step,
                                                  const std::vector<std::string>& after) {
  std::set<std::uint64_t> branch;
  for (const std::string& id : after) branch.insert(hash64(id));
  using Key = std::pair<std::int64_t, std::uint64_t>;  // step and series
  std::map<Key, std::set<int>> ranks_of;
  std::set<Key> on_branch;
  for (const Listed& one : all) {
    ranks_of[{one.step, one.series}].insert(one.rank);
    if (one.rank == 0 && branch.contains(one.after)) on_branch.insert({one.step, one.series});
  }
  Found newest;
  for (const auto& [key, ranks] : ranks_of)
    if (key.first > step && static_cast<int>(ranks.size()) == world_.size() &&
        on_branch.contains(key))
      newest = {key.first, key.second};
  // Only rank 0 knows the branch.
  std::istringstream(text_of(world_, 0, fmt::format("{} {}", newest.step, newest.series))) >>
      newest.step >> newest.series;
  return newest;
}

// Returns the file of this rank: its own, or that of the lowest rank that sees it. Several
// receivers may have the same sender.
std::vector<std::byte> MemoryCopies::fetch(const std::vector<Listed>& all, const Found& wanted) {
  std::vector<int> holders(static_cast<std::size_t>(world_.size()), -1);
  for (const Listed& one : all) {
    int& holder = holders[one.rank];
    if (one.step == wanted.step && one.series == wanted.series &&
        (holder < 0 || one.holder == one.rank))
      holder = one.holder;
  }
  const auto read = [&](int rank) {
    std::vector<std::byte> content;
    const auto size = static_cast<std::size_t>(file_sizes_[rank]);
    for (const bool own : {true, false})
      for (int i = 0; i < kGenerations && content.empty(); ++i)
        if (const auto info = MemoryFile::peek(path_of(rank, own, i), size);
            info && info->step == wanted.step && info->series == wanted.series &&
            info->fingerprint == fingerprint_ && info->rank == rank) {
          MemoryFile file(path_of(rank, own, i), size);
          content.assign(file.bytes().begin(), file.bytes().end());
        }
    content.resize(size);  // not valid, if another process has removed it
    return content;
  };
  const int own = world_.rank();
  const int holder = holders[own];
  std::vector<std::byte> result(file_bytes_);
  Communicator::Work receiving;
  if (holder == own)
    result = read(own);
  else
    receiving =
        world_.receive(bytes_tensor(result.data(), static_cast<std::int64_t>(file_bytes_)), holder);
  for (int rank = 0; rank < world_.size(); ++rank)
    if (rank != own && holders[rank] == own) {
      const std::vector<std::byte> content = read(rank);
      world_.wait(world_.send(
          bytes_tensor(content.data(), static_cast<std::int64_t>(content.size())), rank));
    }
  if (holder != own) world_.wait(receiving);
  return result;
}

void MemoryCopies::load(std::span<const std::byte> data) {
  const std::byte* from = data.data();
  for (const Tensor& tensor : tensors_) {
    engine_.backend().upload(tensor, from);
    from += tensor.bytes();
  }
  engine_.backend().synchronize();
}

std::optional<TrainerState> MemoryCopies::restore(std::int64_t step,
                                                  const std::vector<std::string>& after) {
  const std::vector<Listed> all = list_all();
  const Found newest = newest_complete(all, step, after);
  if (newest.step < 0) return std::nullopt;
  const std::vector<std::byte> file = fetch(all, newest);
  std::optional<MemoryContent> content = checked_content(file, {.fingerprint = fingerprint_,
                                                                .step = newest.step,
                                                                .rank = world_.rank(),
                                                                .after = 0,
                                                                .series = newest.series});
  if (content && content->data.size() != data_bytes_) content.reset();
  std::int64_t damaged = content ? 0 : 1;
  world_.wait(world_.all_reduce(Tensor(&damaged, DType::I64, {1})));
  if (damaged > 0) return std::nullopt;
  load(content->data);
  restored_ = true;
  return state_from_json(std::string(content->text), "the copy in memory");
}

void MemoryCopies::remove() {
  world_.barrier();
  std::error_code ignored;
  if (first_on_node_) fs::remove_all(directory_, ignored);
  world_.barrier();  // open() may create it again
}

}  // namespace kintsugi
