// Checks schedules against their papers: complete, in a valid order, free of deadlock, with the
// bubble and the activation memory of the closed forms.
#include "parallel/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "parallel/pipeline.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

using enum ActionKind;
using testing::AllOf;
using testing::HasSubstr;

constexpr ActionTimes kHalvesAlike = {.forward = 1, .backward_input = 1, .backward_weight = 1};

std::vector<PipelineShape> shapes_of(PipelineKind kind) {
  std::vector<PipelineShape> shapes;
  for (int stages = 1; stages <= 8; ++stages) {
    if (kind == PipelineKind::Interleaved) {
      for (int rounds = 1; rounds <= 4; ++rounds)
        for (int chunks = 2; chunks <= 4; ++chunks)
          shapes.push_back({kind, stages, rounds * stages, chunks});
    } else {
      for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 11, 16, 24})
        shapes.push_back({kind, stages, micro_batches, 1});
    }
  }
  return shapes;
}

std::vector<PipelineShape> all_shapes() {
  std::vector<PipelineShape> shapes;
  for (const auto kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                          PipelineKind::Interleaved, PipelineKind::ZeroBubbleH1})
    for (const PipelineShape& shape : shapes_of(kind)) shapes.push_back(shape);
  return shapes;
}

std::string name_of(const PipelineShape& s) {
  return std::string(to_string(s.kind)) + " stages " + std::to_string(s.stages) +
         " micro-batches " + std::to_string(s.micro_batches) + " chunks " +
         std::to_string(s.chunks);
}

std::string error_of(const PipelineShape& shape) {
  try {
    make_pipeline_schedule(shape);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// ---- lists of actions

TEST(PipelineSchedule, EveryComputeActionOnceOnEveryRank) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const PipelineSchedule schedule = make_pipeline_schedule(shape);
    ASSERT_EQ(schedule.ranks.size(), static_cast<std::size_t>(shape.stages));
    const bool split = shape.kind == PipelineKind::ZeroBubbleH1;
    for (const std::vector<Action>& actions : schedule.ranks) {
      std::map<std::tuple<ActionKind, int, int>, int> count;
      std::map<int, int> reduces;
      for (const Action& action : actions) {
        if (is_compute(action.kind)) ++count[{action.kind, action.micro_batch, action.chunk}];
        if (action.kind == Reduce) ++reduces[action.chunk];
      }
      std::size_t expected = 0;
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        ASSERT_EQ(reduces[chunk], 1);
        for (int m = 0; m < shape.micro_batches; ++m)
          for (const ActionKind kind : split ? std::vector{Forward, BackwardInput, BackwardWeight}
                                             : std::vector{Forward, Backward}) {
            ASSERT_EQ((count[{kind, m, chunk}]), 1) << to_string(kind) << " " << m << " " << chunk;
            ++expected;
          }
      }
      ASSERT_EQ(count.size(), expected);
    }
  }
}

// Numbers the chunks in layer order, independently of PipelineChunk.
TEST(PipelineSchedule, ComputeWaitsForItsInputsAndMessagesFollowCompute) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const PipelineSchedule schedule = make_pipeline_schedule(shape);
    const int chunks = shape.stages * shape.chunks;
    for (int rank = 0; rank < shape.stages; ++rank) {
      std::set<std::tuple<ActionKind, int, int>> seen;
      std::map<int, int> weight_backwards;
      for (const Action& a : schedule.ranks[rank]) {
        const int number = a.chunk * shape.stages + rank;
        const bool alone = shape.stages == 1;
        const auto had = [&](ActionKind kind, int chunk) {
          return seen.contains({kind, a.micro_batch, chunk});
        };
        const auto had_backward = [&](int chunk) {
          return had(Backward, chunk) || had(BackwardInput, chunk);
        };
        switch (a.kind) {
          case Forward:
            ASSERT_TRUE(number == 0 ||
                        (alone ? had(Forward, a.chunk - 1) : had(ReceiveActivation, a.chunk)));
            break;
          case Backward:
          case BackwardInput:
            ASSERT_TRUE(had(Forward, a.chunk));
            ASSERT_TRUE(number == chunks - 1 ||
                        (alone ? had_backward(a.chunk + 1) : had(ReceiveGradient, a.chunk)));
            break;
          case BackwardWeight:
            ASSERT_TRUE(had(BackwardInput, a.chunk));
            break;
          case SendActivation:
            ASSERT_TRUE(had(Forward, a.chunk) && number < chunks - 1 && !alone);
            break;
          case SendGradient:
            ASSERT_TRUE(had_backward(a.chunk) && number > 0 && !alone);
            break;
          case ReceiveActivation:
            ASSERT_TRUE(number > 0 && !alone);
            break;
          case ReceiveGradient:
            ASSERT_TRUE(number < chunks - 1 && !alone);
            break;
          case Reduce:
            ASSERT_EQ(weight_backwards[a.chunk], shape.micro_batches);
            break;
        }
        if (a.kind == Backward || a.kind == BackwardWeight) ++weight_backwards[a.chunk];
        ASSERT_TRUE(seen.insert({a.kind, a.micro_batch, a.chunk}).second);
      }
    }
  }
}

// A stage has two output buffers: no schedule may compute two more outputs before it sends one.
TEST(PipelineSchedule, OutputsAreSentBeforeTheirBufferIsNeeded) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const PipelineSchedule schedule = make_pipeline_schedule(shape);
    for (const std::vector<Action>& actions : schedule.ranks) {
      std::vector<std::pair<int, int>> forwards;
      for (const Action& a : actions) {
        if (a.kind == Forward) forwards.emplace_back(a.chunk, a.micro_batch);
        if (a.kind != SendActivation) continue;
        const std::size_t first = forwards.size() - std::min<std::size_t>(forwards.size(), 2);
        ASSERT_EQ(std::count(forwards.begin() + static_cast<std::ptrdiff_t>(first), forwards.end(),
                             std::pair(a.chunk, a.micro_batch)),
                  1);
      }
    }
  }
}

// SendActivation sends the output of its micro-batch, not the one that was written last.
TEST(PipelineSchedule, OutputsAreFoundByChunkAndMicroBatch) {
  OutputBuffers outputs;
  const std::size_t first = outputs.write(0, 0), second = outputs.write(1, 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(outputs.find(0, 0), first);
  EXPECT_EQ(outputs.find(1, 0), second);
  EXPECT_EQ(outputs.write(0, 1), first);
  EXPECT_EQ(outputs.find(1, 0), second);
  EXPECT_THROW(outputs.find(0, 0), Failure);
  // The next step has the same chunk and micro-batch numbers.
  for (int step = 0; step < 3; ++step) {
    const std::size_t written = outputs.write(0, 0);
    EXPECT_EQ(outputs.find(0, 0), written);
  }
}

TEST(PipelineSchedule, SendsAndReceivesOfTwoRanksMatchInOrder) {
  using Message =
      std::tuple<bool, int, int>;  // is activation, micro-batch, number of the receiving chunk
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const PipelineSchedule schedule = make_pipeline_schedule(shape);
    std::map<std::pair<int, int>, std::vector<Message>> sent, received;
    for (int rank = 0; rank < shape.stages; ++rank)
      for (const Action& a : schedule.ranks[rank]) {
        const int number = a.chunk * shape.stages + rank;
        const int next = (rank + 1) % shape.stages;
        const int previous = (rank + shape.stages - 1) % shape.stages;
        if (a.kind == SendActivation)
          sent[{rank, next}].push_back({true, a.micro_batch, number + 1});
        if (a.kind == SendGradient)
          sent[{rank, previous}].push_back({false, a.micro_batch, number - 1});
        if (a.kind == ReceiveActivation)
          received[{previous, rank}].push_back({true, a.micro_batch, number});
        if (a.kind == ReceiveGradient)
          received[{next, rank}].push_back({false, a.micro_batch, number});
      }
    EXPECT_EQ(sent, received);
    std::size_t messages = 0;
    for (const auto& [pair, list] : sent) messages += list.size();
    const int borders = shape.stages == 1 ? 0 : shape.stages * shape.chunks - 1;
    EXPECT_EQ(messages, static_cast<std::size_t>(2 * borders * shape.micro_batches));
  }
}

// The order of Megatron's interleaved schedule for 2 stages, 2 chunks, 4 micro-batches, worked out
// by hand from its description: (chunk, micro-batch), F forward, B backward.
TEST(PipelineSchedule, InterleavedOrderIsMegatrons) {
  const PipelineSchedule schedule = make_pipeline_schedule({PipelineKind::Interleaved, 2, 4, 2});
  const auto text = [&](int rank) {
    std::string out;
    for (const Action& a : schedule.ranks[rank])
      if (is_compute(a.kind))
        out += (a.kind == Forward ? "F" : "B") + std::to_string(a.chunk) +
               std::to_string(a.micro_batch) + " ";
    return out;
  };
  EXPECT_EQ(text(0), "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03 ");
  EXPECT_EQ(text(1), "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03 ");
}

// ---- timing

TEST(PipelineSchedule, NoDeadlockEvenWhenSendsWaitForTheirReceives) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const PipelineSchedule schedule = make_pipeline_schedule(shape);
    for (const Transport transport : {Transport::Blocking, Transport::Overlapped})
      for (const ActionTimes& times :
           {kHalvesAlike, ActionTimes{1, 0.3, 2.5, 0.7}, ActionTimes{3, 1, 0.1, 5}}) {
        const PipelineTiming timing = simulate_pipeline(schedule, times, transport);
        ASSERT_EQ(timing.deadlock, "");
        for (int rank = 0; rank < shape.stages; ++rank)
          ASSERT_EQ(timing.spans[rank].size(), schedule.ranks[rank].size());
      }
  }
}

// No action may start before its message has arrived.
TEST(PipelineSchedule, MessagesTakeTime) {
  const PipelineSchedule schedule =
      make_pipeline_schedule({PipelineKind::OneForwardOneBackward, 3, 1, 1});
  for (const Transport transport : {Transport::Blocking, Transport::Overlapped}) {
    // Three forwards, three backwards of 2 + 3 and four messages of 10, one after the other.
    const ActionTimes times = {
        .forward = 1, .backward_input = 2, .backward_weight = 3, .message = 10};
    const PipelineTiming timing = simulate_pipeline(schedule, times, transport);
    EXPECT_DOUBLE_EQ(timing.makespan, 3 * 1 + 3 * 5 + 4 * 10);
  }
}

TEST(PipelineSchedule, ADeadlockIsFound) {
  PipelineSchedule schedule =
      make_pipeline_schedule({PipelineKind::OneForwardOneBackward, 2, 2, 1});
  // Both send first: fine with asynchronous sends, a deadlock with blocking ones.
  schedule.ranks[0] = {{Forward, 0, 0},         {SendActivation, 0, 0},  {Forward, 1, 0},
                       {SendActivation, 1, 0},  {ReceiveGradient, 0, 0}, {Backward, 0, 0},
                       {ReceiveGradient, 1, 0}, {Backward, 1, 0}};
  schedule.ranks[1] = {{ReceiveActivation, 0, 0}, {Forward, 0, 0},           {Backward, 0, 0},
                       {SendGradient, 0, 0},      {ReceiveActivation, 1, 0}, {Forward, 1, 0},
                       {Backward, 1, 0},          {SendGradient, 1, 0}};
  EXPECT_EQ(simulate_pipeline(schedule, kHalvesAlike).deadlock, "");
  EXPECT_THAT(simulate_pipeline(schedule, kHalvesAlike, Transport::Blocking).deadlock,
              AllOf(HasSubstr("rank 0"), HasSubstr("send_activation"), HasSubstr("micro-batch 1")));
}

TEST(PipelineSchedule, MessagesInAnotherOrderAreFound) {
  PipelineSchedule schedule = make_pipeline_schedule({PipelineKind::GPipe, 2, 2, 1});
  std::vector<Action>& last = schedule.ranks[1];
  const auto receive = [&](int m) {
    return std::find(last.begin(), last.end(), Action{ReceiveActivation, m, 0});
  };
  std::iter_swap(receive(0), receive(1));
  EXPECT_NE(simulate_pipeline(schedule, kHalvesAlike, Transport::Blocking).deadlock, "");
  last.erase(receive(1));
  EXPECT_NE(simulate_pipeline(schedule, kHalvesAlike).deadlock, "");
}

TEST(PipelineSchedule, BubblesAreThoseOfTheClosedForms) {
  for (const PipelineKind kind :
       {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, PipelineKind::Interleaved})
    for (const PipelineShape& shape : shapes_of(kind)) {
      SCOPED_TRACE(name_of(shape));
      const PipelineTiming timing = simulate_pipeline(make_pipeline_schedule(shape), kHalvesAlike);
      const double fill = shape.stages - 1;
      EXPECT_NEAR(timing.bubble, fill / (shape.chunks * shape.micro_batches + fill), 1e-12);
      EXPECT_NEAR(timing.makespan, 3 * (shape.chunks * shape.micro_batches + fill), 1e-9);
    }
}

TEST(PipelineSchedule, ZeroBubbleH1HasTheBubbleOfItsPaper) {
  for (const PipelineShape& shape : shapes_of(PipelineKind::ZeroBubbleH1)) {
    SCOPED_TRACE(name_of(shape));
    const PipelineTiming timing = simulate_pipeline(make_pipeline_schedule(shape), kHalvesAlike);
    PipelineShape other = shape;
    other.kind = PipelineKind::OneForwardOneBackward;
    const PipelineTiming plain = simulate_pipeline(make_pipeline_schedule(other), kHalvesAlike);
    EXPECT_TRUE(shape.stages == 1 || timing.bubble < plain.bubble - 1e-6);
    if (shape.micro_batches < shape.stages) continue;  // the paper assumes a full pipeline
    // (p - 1)(T_F + T_B - T_W)
    for (const double idle : timing.idle) EXPECT_NEAR(idle, shape.stages - 1, 1e-9);
  }
}

// ---- memory

TEST(PipelineSchedule, LiveActivations) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(name_of(shape));
    const std::vector<int> live =
        simulate_pipeline(make_pipeline_schedule(shape), kHalvesAlike).peak_live;
    const int m = shape.micro_batches, p = shape.stages, total = m * shape.chunks;
    for (int rank = 0; rank < p; ++rank) switch (shape.kind) {
        case PipelineKind::GPipe:
          EXPECT_EQ(live[rank], m);
          break;
        case PipelineKind::OneForwardOneBackward:
          EXPECT_EQ(live[rank], std::min(m, p - rank));
          break;
        case PipelineKind::Interleaved:
          EXPECT_EQ(live[rank], std::min(total, (p - rank - 1) * 2 + (shape.chunks - 1) * p + 1));
          break;
        case PipelineKind::ZeroBubbleH1:
          EXPECT_LE(live[rank], std::min(m, p));  // what 1F1B stashes on its first rank
          break;
      }
  }
}

// ---- mistakes

TEST(PipelineSchedule, WrongNumbersAreNamed) {
  const auto interleaved = PipelineKind::Interleaved;
  EXPECT_THAT(error_of({interleaved, 4, 10, 2}), HasSubstr("nearest are 8 and 12"));
  EXPECT_THAT(error_of({interleaved, 4, 3, 2}), HasSubstr("nearest is 4"));
  EXPECT_THAT(error_of({interleaved, 4, 8, 1}), HasSubstr("2 or more"));
  EXPECT_THAT(error_of({PipelineKind::GPipe, 4, 8, 2}), HasSubstr("use interleaved"));
  EXPECT_THAT(error_of({PipelineKind::GPipe, 0, 8, 1}), HasSubstr("stages is 0"));
  EXPECT_THAT(error_of({PipelineKind::GPipe, 4, -1, 1}), HasSubstr("micro-batches is -1"));
  EXPECT_THAT(error_of({interleaved, 4, 8, 0}), HasSubstr("chunks is 0"));
  EXPECT_THAT(error_of({PipelineKind::GPipe, 2000000000, 2000000000, 1}), HasSubstr("too large"));
  EXPECT_THROW(parse_pipeline_kind("1F1B"), UserError);
  for (const auto kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, interleaved,
                          PipelineKind::ZeroBubbleH1})
    EXPECT_EQ(parse_pipeline_kind(to_string(kind)), kind);
}

}  // namespace
}  // namespace kintsugi
