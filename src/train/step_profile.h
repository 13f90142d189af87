#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/grid.h"
#include "core/trace.h"
#include "report/profile/profile.h"

namespace kintsugi {

// What `train --profile` asks for.
struct ProfileRequest {
  // Steps of the run, as the log counts them. 0: the third and fourth step of this process.
  std::int64_t first_step = 0, last_step = 0;
  bool on_request = false;  // none until kintsugi ctl asks for some
  // The ranks that record. -1: all, but at most kDefaultRanks.
  int first_rank = 0, last_rank = -1;
  std::filesystem::path file = {};  // empty: in profiles/ of the run directory
  bool overwrite = false;           // --overwrite: `file` may be replaced

  static constexpr int kDefaultRanks = 16;
  bool records(int rank, int ranks) const;
  bool given_steps() const { return first_step > 0; }
};
inline constexpr std::int64_t kMostProfiledSteps = 100;  // all their spans are kept in memory
std::string range_text(std::int64_t first, std::int64_t last);  // "20-25", "20"
// `text` is "steps=20-25,ranks=0-7,file=PATH" or part of it, in this order; a single step or rank
// is a range of one; "on-request" stands for the steps and the file. Throws UserError if it is
// something else or too long.
ProfileRequest parse_profile_request(std::string_view text);
// UserError unless the file of the request may be written: it must not replace one of the `inputs`.
void check_profile_file(const ProfileRequest& request,
                        const std::vector<std::filesystem::path>& inputs = {});

// Records some steps of a run. Rank 0 writes one file after the last of them.
class StepProfile {
 public:
  // `trace` is the one given to the backend and the communicators. It must outlive this object.
  StepProfile(Trace& trace, ProfileRequest request);

  // The functions up to close() are called by all ranks.
  // Before the first step of each stage. The groups must live until close(). `facts` are what the
  // profile will say of the run; its steps and ranks are not used.
  void open(const Groups& groups, std::filesystem::path directory, ProfileFacts facts);
  void before_step(std::int64_t step);
  void after_step(double seconds);
  void close();  // after the last step of a stage

  // With on_request: records the steps from the next one on. UserError if it cannot now; the same
  // on all ranks.
  void check_ask() const;
  void ask(std::int64_t steps);

  // At the end of the run: warns if no step was recorded.
  void report() const;

  Trace* active() const { return trace_.on() ? &trace_ : nullptr; }
  const ProfileRequest& request() const { return request_; }

 private:
  void begin();
  void end();
  void write(std::vector<RankTrace> ranks);
  std::vector<RankTrace> gather_traces(RankTrace local) const;  // result on rank 0
  std::filesystem::path file() const;
  bool records(int rank) const;

  Trace& trace_;
  ProfileRequest request_;
  const Groups* groups_ = nullptr;
  std::filesystem::path directory_;
  ProfileFacts facts_;
  bool recording_ = false, done_ = false;  // the same on all ranks
  std::int64_t first_seen_ = 0;            // first step of this process
  std::int64_t step_ = 0;                  // the newest
  double offset_s_ = 0;                    // add to this rank's clock to get rank 0's
};

}  // namespace kintsugi
