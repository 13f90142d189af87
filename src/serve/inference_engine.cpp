#include "serve/inference_engine.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "serve/inference_model.h"
#include "serve/page_pool.h"

namespace kintsugi {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Chunks of a recurrent model begin at multiples of so many tokens, whatever else is computed in a
// step: the order of its sums depends on the chunks.
constexpr std::int64_t kStateChunk = 64;

// Whether a token can only be chosen with all logits.
bool needs_all_logits(const SamplingOptions& options) {
  constexpr std::int64_t most = InferenceModel::kMostLargest;
  return options.repetition_penalty != 1.0 || options.logprobs > most ||
         (options.temperature > 0 && (options.top_k == 0 || options.top_k > most));
}
std::int64_t largest_needed(const InferenceRequest& request) {
  const SamplingOptions& o = request.sampling;
  const std::int64_t drawn = o.temperature > 0 ? o.top_k : 1;
  return std::clamp<std::int64_t>(std::max(drawn, o.logprobs), 1, InferenceModel::kMostLargest);
}

std::vector<TokenLogprob> most_likely(const ReadLogits& read, std::int64_t count) {
  std::vector<TokenLogprob> top;
  if (count <= std::ssize(read.largest) || read.all.empty()) {
    for (const LikelyToken& token : read.largest)
      if (std::ssize(top) < count) top.push_back({token.id, token.logit - read.log_sum});
    return top;
  }
  for (std::size_t id = 0; id < read.all.size(); ++id)
    top.push_back({static_cast<std::int32_t>(id), read.all[id] - read.log_sum});
  const auto order = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  };
  const auto kept = std::min(count, static_cast<std::int64_t>(top.size()));
  std::partial_sort(top.begin(), top.begin() + kept, top.end(), order);
  top.resize(at(kept));
  return top;
}

void check_finite(const ReadLogits& read) {
  const double largest = read.largest.front().logit;
  if (std::isfinite(read.log_sum) && std::isfinite(largest)) return;
  if (std::isnan(read.log_sum)) not_finite("a logit is NaN");
  not_finite(fmt::format("the largest logit is {}", largest));
}

// A request that is being computed.
struct Sequence {
  InferenceEngine::Id id = 0;
  InferenceRequest request;
  InferenceListener listener;
  std::vector<std::int32_t> tokens;  // prompt and generated
  std::vector<SampledToken> scores;  // from score_from on
  bool scores_sent = false;
  std::int64_t computed = 0;  // tokens in the cache
  std::vector<std::int32_t> pages;
  PagePool::Chain chain = PagePool::kNoPages;  // of the full pages
  std::int64_t remembered = 0;                 // full pages
  std::int32_t slot = -1;
  std::int64_t prompt() const { return std::ssize(request.prompt); }
  bool is_in_prompt() const { return computed < prompt(); }
  std::int64_t generated() const { return std::ssize(tokens) - prompt(); }
  // How many tokens have to be computed before the next one is known. The last token of a text that
  // is only scored predicts nothing.
  std::int64_t goal() const { return std::ssize(tokens) - (request.max_tokens == 0 ? 1 : 0); }
  bool reads_after(std::int64_t token) const {  // whether the logits of a token are read
    const std::int64_t next = token + 1;
    if (next == std::ssize(tokens)) return request.max_tokens > 0;
    return request.score_from && next < prompt() && next >= *request.score_from &&
           next - *request.score_from >= std::ssize(scores);
  }
};

}  // namespace

struct InferenceEngine::State {
  State(Backend& backend, Communicator& tensor, const std::filesystem::path& directory,
        const InferenceOptions& given)
      : model(backend, tensor, directory, given),
        pool(model.pages(), given.reuse_prefixes && !model.is_recurrent()),
        leads(tensor.rank() == 0) {
    for (std::int64_t slot = model.options().max_sequences - 1; slot >= 0; --slot)
      free_slots.push_back(static_cast<std::int32_t>(slot));
  }

  bool step();
  void end_cancelled();

  void admit();
  bool admit_first();
  std::vector<StepSequence> arrange();
  std::int64_t state_chunk() const {
    return std::min(kStateChunk, model.options().step_tokens / 2);
  }
  std::int64_t next_tokens(const Sequence& sequence, std::int64_t left) const;
  bool arrange_one(Sequence& sequence, std::int64_t count, std::vector<StepSequence>& step);
  bool reserve_pages(Sequence& sequence, std::int64_t tokens);
  void set_back(Sequence& sequence);
  void free_memory(Sequence& sequence);
  void remember_pages(Sequence& sequence);

  void use_results(Sequence& sequence, const StepSequence& step,
                   const std::vector<ReadLogits>& read);
  std::optional<InferenceEnd> report(Sequence& sequence, const ReadLogits* next);
  std::optional<InferenceEnd> add_token(Sequence& sequence, const ReadLogits& read);
  SampledToken choose(const Sequence& sequence, const ReadLogits& read) const;
  void end(Sequence& sequence, InferenceEnd how, const std::string& error = "");
  void fail_all(const std::string& error);

  InferenceModel model;
  PagePool pool;
  bool leads;
  std::list<Sequence> waiting, running;  // the first were submitted or admitted first
  std::vector<std::int32_t> free_slots;
  std::vector<Sequence*> in_step;  // by StepSequence
  std::vector<Id> cancelled;
  InferenceCounters counters;
  Id next_id = 1;
};

// ---- memory of a sequence

void InferenceEngine::State::free_memory(Sequence& s) {
  // The last page first: it is then the first to be needed for other tokens, and the beginning of
  // the sequence is found longest.
  for (auto page = s.pages.rbegin(); page != s.pages.rend(); ++page) pool.release(*page);
  s.pages.clear();
  if (s.slot >= 0) free_slots.push_back(s.slot);
  s.slot = -1;
  s.computed = s.remembered = 0;
  s.chain = PagePool::kNoPages;
}

// Makes room for the first `tokens` tokens of a sequence. Sequences that were admitted later are
// set back if there is too little. False if the sequence itself has to wait.
bool InferenceEngine::State::reserve_pages(Sequence& s, std::int64_t tokens) {
  if (model.pages() == 0) return true;
  while (std::ssize(s.pages) * kPageTokens < tokens) {
    if (const auto page = pool.take()) {
      s.pages.push_back(*page);
      continue;
    }
    Sequence& last = running.back();
    const bool itself = &last == &s;
    set_back(last);
    if (itself) return false;
  }
  return true;
}

// Gives the memory of the sequence admitted last to others. It begins again later.
void InferenceEngine::State::set_back(Sequence& s) {
  free_memory(s);
  ++counters.preemptions;
  waiting.splice(waiting.begin(), running, std::prev(running.end()));
}

void InferenceEngine::State::remember_pages(Sequence& s) {
  // Generated tokens are computed one by one, which may round differently.
  const std::int64_t reusable =
      model.options().deterministic ? std::min(s.computed, s.prompt()) : s.computed;
  while (model.pages() > 0 && (s.remembered + 1) * kPageTokens <= reusable) {
    const auto tokens =
        std::span(s.tokens).subspan(at(s.remembered * kPageTokens), at(kPageTokens));
    s.chain = pool.remember(s.pages[at(s.remembered)], s.chain, tokens);
    ++s.remembered;
  }
}

// ---- scheduling

void InferenceEngine::State::admit() {
  while (!waiting.empty() && !free_slots.empty() && admit_first()) continue;
}

// Admits the request that has waited longest, if there is memory for all its tokens so far.
bool InferenceEngine::State::admit_first() {
  Sequence& s = waiting.front();
  if (s.goal() <= 0) {  // one token that is only scored
    if (const auto how = report(s, nullptr)) end(s, *how);
    return true;
  }
  // Tokens whose logits are read must be computed, and at least one.
  std::int64_t reusable = s.goal() - 1;
  if (s.request.score_from)
    reusable = std::min(reusable, *s.request.score_from - 1 + std::ssize(s.scores));
  PagePool::Found found =
      pool.find(s.tokens, at(std::max<std::int64_t>(0, reusable) / kPageTokens));
  s.pages = std::move(found.pages);
  s.chain = found.chain;
  s.remembered = std::ssize(s.pages);
  s.computed = s.remembered * kPageTokens;
  const std::int64_t needed = (std::ssize(s.tokens) + kPageTokens) / kPageTokens;
  if (model.pages() > 0 && needed - std::ssize(s.pages) > pool.available() && !running.empty()) {
    free_memory(s);
    return false;
  }
  counters.reused_tokens += s.computed;
  s.slot = free_slots.back();
  free_slots.pop_back();
  running.splice(running.end(), waiting, waiting.begin());
  return true;
}

// How many tokens of a sequence are computed next, if a step has `left` left.
std::int64_t InferenceEngine::State::next_tokens(const Sequence& s, std::int64_t left) const {
  const std::int64_t rest = s.goal() - s.computed;
  // Generated tokens that have to be computed again are computed as they were the first time.
  if (model.options().deterministic && !s.is_in_prompt()) return std::min<std::int64_t>(1, left);
  const std::int64_t in_prompt =
      model.options().deterministic ? std::min(rest, s.prompt() - s.computed) : rest;
  if (!s.is_in_prompt() || !model.is_recurrent()) return std::min(in_prompt, left);
  const std::int64_t count = std::min(in_prompt, state_chunk() - s.computed % state_chunk());
  return count <= left ? count : 0;
}

// Sequences that generate come first, so that long prompts do not delay them, but leave a part of
// the step to prompts.
std::vector<StepSequence> InferenceEngine::State::arrange() {
  std::vector<Sequence*> order;
  for (const bool in_prompt : {false, true})
    for (Sequence& s : running)
      if (s.is_in_prompt() == in_prompt) order.push_back(&s);
  const bool has_prompts = !order.empty() && order.back()->is_in_prompt();
  const std::int64_t reserved = !has_prompts           ? 0
                                : model.is_recurrent() ? state_chunk()
                                                       : model.options().step_tokens / 4;
  std::vector<StepSequence> all, kept;
  std::vector<Sequence*> sequences;
  in_step.clear();
  std::int64_t left = model.options().step_tokens;
  for (Sequence* s : order) {
    if (s->slot < 0) continue;  // set back in favour of another
    const std::int64_t count = next_tokens(*s, s->is_in_prompt() ? left : left - reserved);
    if (count > 0 && arrange_one(*s, count, all)) left -= count;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (in_step[i]->slot < 0) continue;  // set back after it was arranged
    kept.push_back(std::move(all[i]));
    sequences.push_back(in_step[i]);
  }
  in_step = std::move(sequences);
  return kept;
}

bool InferenceEngine::State::arrange_one(Sequence& s, std::int64_t count,
                                         std::vector<StepSequence>& step) {
  const std::int64_t first = s.computed, last = first + count;
  if (!reserve_pages(s, last)) return false;
  StepSequence next{.tokens = {s.tokens.begin() + first, s.tokens.begin() + last},
                    .position = first,
                    .slot = s.slot,
                    .pages = s.pages,
                    .is_prompt = s.is_in_prompt(),
                    .largest = largest_needed(s.request)};
  for (std::int64_t token = first; token < last; ++token)
    if (s.reads_after(token))
      next.targets.push_back(token + 1 < std::ssize(s.tokens) ? s.tokens[at(token + 1)] : -1);
  next.whole =
      !next.targets.empty() && next.targets.back() == -1 && needs_all_logits(s.request.sampling);
  step.push_back(std::move(next));
  in_step.push_back(&s);
  return true;
}

// ---- results

SampledToken InferenceEngine::State::choose(const Sequence& s, const ReadLogits& read) const {
  const SamplingOptions& options = s.request.sampling;
  check_finite(read);
  const auto position = static_cast<std::uint64_t>(s.tokens.size());
  SampledToken token{.id = read.all.empty() ? choose_token(read.largest, options, position)
                                            : choose_token(read.all, options, position, s.tokens)};
  if (options.logprobs < 0) return token;
  double logit = 0;
  if (!read.all.empty()) logit = read.all[static_cast<std::size_t>(token.id)];
  for (const LikelyToken& likely : read.largest)
    if (likely.id == token.id) logit = likely.logit;
  token.logprob = logit - read.log_sum;
  token.top = most_likely(read, options.logprobs);
  return token;
}

std::optional<InferenceEnd> InferenceEngine::State::add_token(Sequence& s, const ReadLogits& read) {
  const SampledToken token = choose(s, read);
  ++counters.new_tokens;
  const auto& stops = s.request.stop_tokens;
  if (token.id == model.config().eos_token ||
      std::find(stops.begin(), stops.end(), token.id) != stops.end())
    return InferenceEnd::StopToken;
  s.tokens.push_back(token.id);
  if (s.listener.on_token && !s.listener.on_token(token)) return InferenceEnd::Stopped;
  if (s.generated() >= s.request.max_tokens) return InferenceEnd::Length;
  return {};
}

// Takes over the results of a step for one sequence, which may end with it.
void InferenceEngine::State::use_results(Sequence& s, const StepSequence& step,
                                         const std::vector<ReadLogits>& read) {
  counters.prompt_tokens +=
      std::clamp<std::int64_t>(s.prompt() - s.computed, 0, std::ssize(step.tokens));
  s.computed += std::ssize(step.tokens);
  remember_pages(s);
  const std::int64_t top = std::max<std::int64_t>(1, s.request.sampling.logprobs);
  std::optional<InferenceEnd> how;
  std::string error;
  try {
    const ReadLogits* next = nullptr;
    for (std::size_t i = 0; i < read.size(); ++i) {
      check_finite(read[i]);
      if (step.targets[i] < 0)
        next = &read[i];
      else
        s.scores.push_back({.id = step.targets[i],
                            .logprob = read[i].chosen - read[i].log_sum,
                            .top = most_likely(read[i], top)});
    }
    how = report(s, next);
  } catch (const std::exception& problem) {
    how = InferenceEnd::Failed;
    error = problem.what();
  }
  if (how) end(s, *how, error);
}

void InferenceEngine::State::end(Sequence& s, InferenceEnd how, const std::string& error) {
  free_memory(s);
  (how == InferenceEnd::StopToken || how == InferenceEnd::Length ? counters.finished
                                                                 : counters.cancelled) += 1;
  const InferenceListener listener = std::move(s.listener);
  const auto is_it = [&](const Sequence& other) { return &other == &s; };
  if (running.remove_if(is_it) == 0) waiting.remove_if(is_it);
  if (listener.on_end) listener.on_end(how, error);
}

// Calls the listener for what is new. Returns how the sequence ended, if it did.
std::optional<InferenceEnd> InferenceEngine::State::report(Sequence& s, const ReadLogits* next) {
  if (s.request.score_from && !s.scores_sent &&
      std::ssize(s.scores) >= s.prompt() - *s.request.score_from) {
    s.scores_sent = true;
    if (s.listener.on_scores) s.listener.on_scores(s.scores);
  }
  if (next != nullptr) return add_token(s, *next);
  if (s.computed >= s.goal() && s.request.max_tokens == 0) return InferenceEnd::Length;
  return {};
}

void InferenceEngine::State::fail_all(const std::string& error) {
  while (!running.empty()) end(running.front(), InferenceEnd::Failed, error);
  while (!waiting.empty()) end(waiting.front(), InferenceEnd::Failed, error);
}

void InferenceEngine::State::end_cancelled() {
  for (const Id id : std::exchange(cancelled, {}))
    for (std::list<Sequence>* list : {&running, &waiting}) {
      const auto found =
          std::find_if(list->begin(), list->end(), [&](const Sequence& s) { return s.id == id; });
      if (found == list->end()) continue;
      end(*found, InferenceEnd::Stopped);
      break;
    }
}

bool InferenceEngine::State::step() {
  end_cancelled();
  admit();
  const std::vector<StepSequence> sequences = arrange();
  std::vector<std::vector<ReadLogits>> results(sequences.size());
  try {
    if (!sequences.empty()) results = model.compute(sequences);
  } catch (const std::exception& error) {  // other ranks may still wait for this one
    fail_all(error.what());
    throw;
  }
  if (!sequences.empty()) ++counters.steps;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    use_results(*in_step[i], sequences[i], results[i]);
  return !running.empty() || !waiting.empty();
}

// ---- the engine

InferenceEngine::InferenceEngine(Backend& backend, Communicator& tensor,
                                 const std::filesystem::path& directory,
                                 const InferenceOptions& options)
    : state_(std::make_unique<State>(backend, tensor, directory, options)) {}

InferenceEngine::~InferenceEngine() {
  if (!state_->leads) return;
  try {
    state_->model.end();
  } catch (const std::exception& error) {
    log_warning("the other ranks were not told to end: {}", error.what());
  }
}

const ModelConfig& InferenceEngine::config() const { return state_->model.config(); }
const InferenceOptions& InferenceEngine::options() const { return state_->model.options(); }

void InferenceEngine::check_prompt(const ModelConfig& config, std::span<const std::int32_t> prompt,
                                   std::int64_t max_tokens) {
  if (prompt.empty()) user_error("the prompt is empty: give at least one token");
  for (const std::int32_t token : prompt)
    if (token < 0 || token >= config.vocab_size)
      user_error("token id {} is outside the model's vocabulary of {}", token, config.vocab_size);
  const std::int64_t length = std::ssize(prompt) + max_tokens - 1;  // the last token is no input
  if (config.positions() == PositionKind::Learned && length > config.max_positions)
    user_error("{} tokens are too many for a model with {} positions", length,
               config.max_positions);
}

void InferenceEngine::check(const InferenceRequest& request) const {
  check_prompt(config(), request.prompt, request.max_tokens);
  const InferenceOptions& o = options();
  const std::int64_t length = std::ssize(request.prompt) + request.max_tokens - 1;
  if (length > o.max_length)
    user_error("{} tokens are too many: sequences have up to {} (--max-length)", length,
               o.max_length);
  if (request.score_from && *request.score_from < 1)
    user_error("the first token of a prompt has no probability: score from token 1 on");
  if (request.score_from && request.sampling.logprobs > InferenceModel::kMostLargest)
    user_error("at most {} of the most likely tokens are reported for the tokens of a prompt",
               InferenceModel::kMostLargest);
}

InferenceEngine::Id InferenceEngine::submit(InferenceRequest request, InferenceListener listener) {
  check(request);
  Sequence& s = state_->waiting.emplace_back();
  s.id = state_->next_id++;
  s.tokens = request.prompt;
  s.request = std::move(request);
  s.listener = std::move(listener);
  return s.id;
}

void InferenceEngine::cancel(Id id) { state_->cancelled.push_back(id); }
bool InferenceEngine::step() { return state_->step(); }
void InferenceEngine::follow() { state_->model.follow(); }

InferenceCounters InferenceEngine::counters() const {
  InferenceCounters result = state_->counters;
  result.waiting = std::ssize(state_->waiting);
  result.running = std::ssize(state_->running);
  result.cache_tokens = options().cache_tokens;
  result.cache_in_use = (state_->pool.pages() - state_->pool.available()) * kPageTokens;
  return result;
}

}  // namespace kintsugi
