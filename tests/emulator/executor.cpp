#include "emulator/executor.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "core/error.h"
#include "emulator/fiber.h"
#include "emulator/race_check.h"
#include "emulator/schedule.h"
#include "emulator/shared_memory.h"

namespace kintsugi::emulator {
namespace {

std::string to_string(const Where& where) {
  std::string_view file = where.file_name();
  for (const char* folder : {"/src/", "/tests/"})
    if (const auto at = file.rfind(folder); at != file.npos) file.remove_prefix(at + 1);
  return fmt::format("{}:{}", file, where.line());
}

bool same_call(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}

std::string to_string(const Index& index) {
  return fmt::format("({},{},{})", index.x, index.y, index.z);
}

// The position of an element in a box, x first.
Index position(std::uint64_t number, const Index& size) {
  return {static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
          static_cast<unsigned>(number / size.x / size.y)};
}

// Ends a thread whose launch has failed.
struct Stop {};

// The threads of a team, a wave or a block, which wait for each other in collectives.
struct Group {
  unsigned first = 0;  // thread
  unsigned live = 0;   // threads that have not returned
  unsigned arrived = 0;
  Collective collective{};  // that they wait in, and where
  Where where;
  std::vector<void*> records;    // one for each thread; nullptr: has not arrived
  std::uint32_t ordered_at = 0;  // when a collective last ordered its accesses to memory
};

// One core of the processor and what it keeps between blocks. It executes one block at a time.
class Core {
 public:
  Core() { fibers_.reserve(kMaxThreads); }

  void run_block(const Launch& launch, std::uint64_t block);

  void meet(const Collective& collective, void* record, Where where);
  SharedMemory& shared() { return shared_; }
  Moment now() const;
  std::uint32_t ordered_until(std::uint32_t thread);
  std::string name_of_thread(std::uint32_t number) const;

 private:
  struct Thread {
    Index index;
    Fiber* fiber = nullptr;        // nullptr: has not begun, or has returned
    const Group* group = nullptr;  // that it waits for
  };

  void begin(const Launch& launch, std::uint64_t block);
  static void divide(std::vector<Group>& groups, unsigned threads, unsigned lanes);
  // What a fiber does: threads, one after the other.
  void carry();
  void call_body();
  void leave();  // the running thread has returned
  void wait(const Group& group);
  void complete(Group& group);
  // Takes the next thread; -1: none is left. A deadlock fails the block.
  int next();
  void make_current(int thread);
  void fail(std::exception_ptr error);
  std::string deadlock() const;
  Group& group_of(Scope scope, unsigned thread);
  Fiber* idle_fiber();

  SharedMemory shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber main_;

  const Launch* launch_ = nullptr;
  std::uint64_t block_ = 0;
  std::vector<Thread> threads_;
  std::vector<Group> teams_, waves_, blocks_;  // blocks_ has one element
  Runnable runnable_;
  unsigned waiting_ = 0;
  std::uint32_t time_ = 0;
  std::exception_ptr error_;  // the first; set: all threads stop
};

Core& this_core() {
  thread_local Core core;
  return core;
}

// ---- a block
void Core::run_block(const Launch& launch, std::uint64_t block) {
  KINTSUGI_CHECK(!inside_kernel(), "a kernel launches a kernel");
  detail::inside_kernel = true;
  try {
    begin(launch, block);
    const int first = next();
    make_current(first);
    threads_[first].fiber = idle_fiber();
    main_.switch_to(*threads_[first].fiber);  // back when all threads have returned
  } catch (...) {
    error_ = std::current_exception();
  }
  detail::inside_kernel = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Core::begin(const Launch& launch, std::uint64_t block) {
  launch_ = &launch;
  block_ = block;
  const auto& [blocks, threads, shared_bytes] = launch.grid;
  detail::coordinates.grid_size = {blocks[0], blocks[1], blocks[2]};
  detail::coordinates.block_size = {threads[0], threads[1], threads[2]};
  detail::coordinates.block = position(block, here().grid_size);
  shared_.begin(shared_bytes);
  const unsigned count = threads[0] * threads[1] * threads[2];
  threads_.resize(count);
  for (unsigned i = 0; i < count; ++i) threads_[i] = {.index = position(i, here().block_size)};
  divide(teams_, count, kTeam);
  if (kWave > kTeam) divide(waves_, count, kWave);
  divide(blocks_, count, count);
  runnable_.reset(count, launch.order, block);
  waiting_ = 0;
  time_ = 0;
}

void Core::divide(std::vector<Group>& groups, unsigned threads, unsigned lanes) {
  groups.resize((threads + lanes - 1) / lanes);
  for (unsigned i = 0; i < groups.size(); ++i) {
    groups[i].first = i * lanes;
    groups[i].live = std::min(lanes, threads - i * lanes);
    groups[i].arrived = 0;
    groups[i].records.assign(lanes, nullptr);
    groups[i].ordered_at = 0;
  }
}

Group& Core::group_of(Scope scope, unsigned thread) {
  if (scope == Scope::Block) return blocks_[0];
  if (scope == Scope::Wave && kWave > kTeam) return waves_[thread / kWave];
  return teams_[thread / kTeam];
}

Fiber* Core::idle_fiber() {
  if (idle_.empty()) {
    const auto entry = [](void* core) { static_cast<Core*>(core)->carry(); };
    idle_.push_back(fibers_.emplace_back(std::make_unique<Fiber>(entry, this)).get());
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

// ---- scheduling
void Core::make_current(int thread) {
  detail::coordinates.thread = threads_[thread].index;
  detail::coordinates.number = static_cast<unsigned>(thread);
}

int Core::next() {
  if (const int thread = runnable_.take(); thread >= 0 || waiting_ == 0) return thread;
  fail(std::make_exception_ptr(Failure(deadlock())));
  return runnable_.take();
}

void Core::carry() {
  for (;;) {
    Fiber* self = threads_[here().number].fiber;
    call_body();
    threads_[here().number].fiber = nullptr;
    const int thread = next();
    if (thread >= 0) {
      make_current(thread);
      if (threads_[thread].fiber == nullptr) {
        threads_[thread].fiber = self;
        continue;
      }
    }
    idle_.push_back(self);
    self->switch_to(thread >= 0 ? *threads_[thread].fiber : main_);
  }
}

void Core::call_body() {
  try {
    launch_->body();
    leave();
  } catch (const Stop&) {
  } catch (...) {
    fail(std::current_exception());
  }
}

void Core::leave() {
  const unsigned thread = here().number;
  for (const Scope scope : {Scope::Team, Scope::Wave, Scope::Block}) {
    if (scope == Scope::Wave && kWave == kTeam) continue;
    Group& group = group_of(scope, thread);
    --group.live;
    if (group.arrived > 0 && group.arrived == group.live) complete(group);
  }
}

void Core::wait(const Group& group) {
  const unsigned self = here().number;
  threads_[self].group = &group;
  ++waiting_;
  const auto thread = static_cast<unsigned>(next());  // this one at least, if there is a deadlock
  make_current(static_cast<int>(thread));
  if (thread != self) {
    if (threads_[thread].fiber == nullptr) threads_[thread].fiber = idle_fiber();
    threads_[self].fiber->switch_to(*threads_[thread].fiber);
  }
  if (error_) throw Stop{};
}

void Core::fail(std::exception_ptr error) {
  if (error_) return;
  error_ = std::move(error);
  runnable_.clear();  // threads that have not begun never will
  for (unsigned i = 0; i < threads_.size(); ++i)
    if (threads_[i].fiber != nullptr && i != here().number) runnable_.add(i);
  // Within wait(), the running thread has to stop, too.
  if (threads_[here().number].group != nullptr) runnable_.add(here().number);
  waiting_ = 0;
}

// ---- collectives
void Core::meet(const Collective& collective, void* record, Where where) {
  const unsigned thread = here().number;
  Group& group = group_of(collective.scope, thread);
  if (group.arrived == 0) {
    group.collective = collective;
    group.where = where;
  } else if (!same_call(where, group.where) || collective.complete != group.collective.complete) {
    const auto other = std::find_if(group.records.begin(), group.records.end(),
                                    [](const void* p) { return p != nullptr; });
    failure("{} is in {} at {}, but {} waits for it in {} at {}", name_of_thread(thread),
            collective.name, to_string(where),
            name_of_thread(group.first + static_cast<unsigned>(other - group.records.begin())),
            group.collective.name, to_string(group.where));
  }
  group.records[thread - group.first] = record;
  if (++group.arrived == group.live) {
    complete(group);
  } else {
    wait(group);
  }
}

void Core::complete(Group& group) {
  group.collective.complete(group.records);
  ++time_;
  if (group.collective.orders_memory) group.ordered_at = time_;
  for (unsigned i = 0; i < group.records.size(); ++i) {
    if (group.records[i] == nullptr) continue;
    group.records[i] = nullptr;
    if (threads_[group.first + i].group != &group) continue;  // the last to arrive, which runs
    threads_[group.first + i].group = nullptr;
    runnable_.add(group.first + i);
    --waiting_;
  }
  group.arrived = 0;
}

std::string Core::deadlock() const {
  std::string text = "the threads of a kernel wait for ever:";
  const Group* last = nullptr;
  for (unsigned i = 0; i < threads_.size(); ++i) {
    const Group* group = threads_[i].group;
    if (group == nullptr || group == last) continue;
    last = group;
    text += fmt::format(" {} in {} at {};", name_of_thread(i), group->collective.name,
                        to_string(group->where));
  }
  text.back() = '.';
  return text;
}

// ---- the race check
Moment Core::now() const {
  return {.first_block = launch_->first_block,
          .blocks = static_cast<std::uint32_t>(launch_->block_count),
          .block = launch_->first_block + static_cast<std::uint32_t>(block_),
          .thread = here().number,
          .time = time_};
}

std::uint32_t Core::ordered_until(std::uint32_t thread) {
  std::uint32_t time = blocks_[0].ordered_at;
  for (const Scope scope : {Scope::Wave, Scope::Team})
    if (const Group& mine = group_of(scope, here().number); &mine == &group_of(scope, thread))
      time = std::max(time, mine.ordered_at);
  return time;
}

std::string Core::name_of_thread(std::uint32_t number) const {
  return fmt::format("thread {} of block {}", to_string(threads_[number].index),
                     to_string(here().block));
}

}  // namespace

void meet(const Collective& collective, void* record, Where where) {
  this_core().meet(collective, record, where);
}

void sync_block(Where where) {
  char record = 0;
  this_core().meet({"__syncthreads", Scope::Block, [](std::span<void* const>) {}, true}, &record,
                   where);
}

SharedMemory& shared_memory() { return this_core().shared(); }
Moment now() { return this_core().now(); }
std::uint32_t ordered_until(std::uint32_t thread) { return this_core().ordered_until(thread); }
std::string name_of_thread(std::uint32_t number) { return this_core().name_of_thread(number); }

// ---- launches
void run(const Grid& grid, const std::function<void()>& thread_body, Where where) {
  const auto count = [](const std::array<unsigned, 3>& n) {
    return std::uint64_t{n[0]} * n[1] * n[2];
  };
  KINTSUGI_CHECK(
      count(grid.blocks) > 0 && count(grid.threads) > 0 && count(grid.threads) <= kMaxThreads,
      "a launch of {} blocks of {} threads at {}", count(grid.blocks), count(grid.threads),
      to_string(where));
  static std::atomic<std::uint32_t> next_number{1};
  const auto launch = std::make_shared<Launch>();
  launch->grid = grid;
  launch->body = thread_body;
  launch->block_count = count(grid.blocks);
  launch->first_block = next_number.fetch_add(static_cast<std::uint32_t>(launch->block_count));
  race_check::begin_launch();
  try {
    run_blocks(launch,
               [](const Launch& l, std::uint64_t block) { this_core().run_block(l, block); });
    race_check::end_launch();
  } catch (const Failure& error) {
    failure("{} [kernel launched at {}]", error.what(), to_string(where));
  }
}

}  // namespace kintsugi::emulator
