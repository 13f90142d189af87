#include "comm/mpi/mpi_world.h"

#include <array>
#include <exception>
#include <map>

#include "comm/launch_environment.h"
#include "comm/mpi/exchange.h"
#include "core/collective.h"

namespace kintsugi {
namespace {

class MpiCommunicator : public Communicator {
 public:
  // `id` is unique among the groups of the world.
  MpiCommunicator(std::string name, std::string id, ProgressThread& thread, MpiGroup group)
      : Communicator(std::move(name), group.rank, group.size),
        id_(std::move(id)),
        thread_(thread),
        group_(std::move(group)),
        sent_(static_cast<std::size_t>(group_.size)),
        received_(sent_),
        exceptions_(std::uncaught_exceptions()) {}

  ~MpiCommunicator() override {
    // The tensors of pending calls may be freed next, while peers still write to them.
    if (!pending_.empty()) thread_.freeze();
    // After a failure peers may never free theirs, and some MPIs wait for them.
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      thread_.run([this] { MPI_Comm_free(&group_.comm); });
    } catch (const Failure&) {  // the progress thread is frozen
    }
  }

  // Messages run concurrently; collectives run one after the other.
  Work start(const Call& call) override {
    const bool message = is_message(call.kind);
    const std::int64_t number = ++count_of(call);
    std::shared_ptr<Operation> operation = make_operation(group_, call);
    if (thread_.traces()) operation->describe(span_of(call, number));
    pending_.emplace(++tickets_, operation);
    thread_.submit(std::move(operation), message ? nullptr : this, times_);
    return {tickets_};
  }
  void wait(Work work) override {
    if (work.ticket == 0) return;
    const auto found = pending_.find(work.ticket);
    KINTSUGI_CHECK(found != pending_.end(), "group {}: wait for call {}, which is not in flight",
                   name(), work.ticket);
    thread_.wait(*found->second);
    pending_.erase(found);
  }
  void barrier() override { wait(start({})); }

  CommunicationTimes times() const override { return thread_.read(times_); }

 private:
  std::int64_t& count_of(const Call& call) {
    if (!is_message(call.kind)) return collectives_;
    return (call.kind == Collective::Send ? sent_ : received_)[call.peer];
  }
  TraceSpan span_of(const Call& call, std::int64_t number) const {
    TraceSpan span{.kind = SpanKind::Communication,
                   .lane = name(),
                   .name = to_string(call.kind),
                   .bytes = call.whole() ? static_cast<std::int64_t>(call.whole().bytes()) : 0,
                   .call = fmt::format("{} {}", id_, number)};
    if (is_message(call.kind)) {
      const bool sends = call.kind == Collective::Send;
      span.lane = fmt::format("{} {} {}", name(), sends ? '>' : '<', call.peer);
      span.call = fmt::format("{} {}>{} {}", id_, sends ? rank() : call.peer,
                              sends ? call.peer : rank(), number);
    }
    return span;
  }

  std::string id_;
  ProgressThread& thread_;
  MpiGroup group_;
  CommunicationTimes times_;
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, std::shared_ptr<Operation>> pending_;
  std::int64_t collectives_ = 0;               // number of calls
  std::vector<std::int64_t> sent_, received_;  // number of messages, by peer
  int exceptions_;                             // in flight when it was made
};

class MpiWorld : public World {
 public:
  explicit MpiWorld(Trace* trace)
      : World(Place{}), exceptions_(std::uncaught_exceptions()), thread_(trace) {
    thread_.run([this] { initialize(); });
    const int launched = launched_ranks();
    if (launched > 1 && size() == 1)
      user_error(
          "the launcher started {} processes, but MPI sees only one rank: use the mpirun of the "
          "MPI this binary was built with, or srun --mpi=pmix",
          launched);
  }

  ~MpiWorld() override {
    // MPI_Finalize waits for all ranks; after a failure, peers may never call it.
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      thread_.run([] { MPI_Finalize(); });
    } catch (const Failure&) {  // the progress thread is frozen
    }
  }

  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    // MPI_Comm_split blocks the progress thread, so collectives in flight could not finish.
    KINTSUGI_CHECK(thread_.idle(), "group {} is created while collectives are in flight", name);
    MpiGroup group{.rank_order = rank_order_};
    thread_.run([&] {
      check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, key, &group.comm), "MPI_Comm_split");
      MPI_Comm_rank(group.comm, &group.rank);
      MPI_Comm_size(group.comm, &group.size);
      if (group.size == 1) MPI_Comm_free(&group.comm);
    });
    const std::string id = fmt::format("{}#{}.{}", name, ++splits_, color);
    if (group.size == 1) return std::make_unique<LocalCommunicator>(name);
    return std::make_unique<MpiCommunicator>(name, id, thread_, std::move(group));
  }

  void sum_in_rank_order(bool on) { rank_order_ = on; }

 private:
  void initialize() {
    int running = 0, provided = 0;
    MPI_Initialized(&running);
    KINTSUGI_CHECK(!running, "MPI is already initialized");
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_FUNNELED) failure("this MPI does not support MPI_THREAD_FUNNELED");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &place_.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place_.size);
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
    MPI_Comm_rank(node, &place_.local_rank);
    MPI_Comm_size(node, &place_.local_size);
    MPI_Comm_free(&node);
  }

  int exceptions_;
  int splits_ = 0;
  bool rank_order_ = false;
  ProgressThread thread_;
};

}  // namespace

bool started_by_mpi() { return launched_ranks() != 1; }

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);  // allowed before MPI_Init
  const std::string version = text.data();
  return version.substr(0, version.find_first_of(",\n"));
}

std::unique_ptr<World> make_mpi_world(Trace* trace) { return std::make_unique<MpiWorld>(trace); }

void sum_in_rank_order(World& world, bool on) {
  if (auto* mpi = dynamic_cast<MpiWorld*>(&world)) mpi->sum_in_rank_order(on);
}

}  // namespace kintsugi
