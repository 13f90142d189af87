#include "data/curation/language_training.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <unordered_set>

#include "core/error.h"
#include "core/hash.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {
namespace {

constexpr std::size_t kPlainDocument = 16384;  // of plain text
constexpr std::size_t kTrainingBatch = 128, kWeightShards = 32;
constexpr std::size_t kPieceBytes[] = {50, 100, 200, 400};

// The end of a piece of about `bytes`: behind the last of them that any of `breaks` follows, else
// between two characters.
std::size_t piece_end(std::string_view text, std::size_t bytes, std::string_view breaks) {
  if (text.size() <= bytes) return text.size();
  const std::size_t end = text.substr(0, bytes + 1).find_last_of(breaks);
  if (end != std::string_view::npos && end > bytes / 2) return end;
  std::size_t cut = bytes;
  while (cut > 1 && (text[cut] & 0xC0) == 0x80) --cut;
  return cut;
}

class CorpusBuilder {
 public:
  explicit CorpusBuilder(const LanguageCorpusOptions& options) : options_(options) {}

  LanguageCorpus build(const std::vector<LanguageFiles>& languages) {
    for (const LanguageFiles& language : languages) {
      label_ = static_cast<std::int32_t>(corpus_.labels.size());
      corpus_.labels.push_back(language.label);
      const std::size_t first = corpus_.documents.size();
      read(language);
      if (corpus_.documents.size() == first) user_error("there is no text of {}", language.label);
      hold_out(first);
    }
    return std::move(corpus_);
  }

 private:
  void read(const LanguageFiles& language) {
    RecordReader::Options reader;
    reader.keys = {options_.text_key};
    reader.skip_damaged = options_.skip_invalid;
    CorpusSource source(language.files, 1, options_.label_bytes, reader);
    seen_.clear();
    hashes_.clear();
    CorpusSource::Batch batch;
    while (source.next(0, batch))
      for (const auto& record : batch.records) {
        const std::string_view bytes =
            std::string_view(batch.bytes).substr(record.begin, record.length);
        if (batch.objects)
          add_object(bytes, batch.file, record.line);
        else
          add_plain(bytes);
      }
    for (SkippedInput& skipped : source.take_skipped())
      corpus_.skipped.push_back(std::move(skipped));
  }

  void add_object(std::string_view line, const std::string& file, std::uint64_t number) {
    Document document;
    try {
      parse_document(line, {.text_key = options_.text_key, .prompt_key = ""}, file, number,
                     document);
    } catch (const UserError& error) {
      if (!options_.skip_invalid) throw;
      if (corpus_.invalid_lines++ == 0) corpus_.first_invalid = error.what();
      return;
    }
    add(document.text);
  }

  void add_plain(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = piece_end(text, kPlainDocument, "\n");
      add(text.substr(0, end));
      text.remove_prefix(end);
    }
  }

  void add(std::string_view text) {
    if (text.find_first_not_of(" \n\r\t\v\f") == std::string_view::npos) return;
    const std::uint64_t hash = hash64(text);
    if (!seen_.insert(hash).second) return;
    hashes_.push_back(hash);
    corpus_.documents.push_back({label_, corpus_.text.size(), text.size()});
    corpus_.text += text;
  }

  // Of the documents from `first` on those with the smallest hashes; one at least, if two are
  // there.
  void hold_out(std::size_t first) {
    const std::size_t count = hashes_.size();
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return hashes_[a] < hashes_[b]; });
    auto held = static_cast<std::size_t>(options_.held_out * static_cast<double>(count));
    if (held == 0 && count > 1 && options_.held_out > 0) held = 1;
    for (std::size_t i = 0; i < held; ++i) corpus_.documents[first + order[i]].held_out = true;
  }

  const LanguageCorpusOptions& options_;
  LanguageCorpus corpus_;
  std::int32_t label_ = 0;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<std::uint64_t> hashes_;
};

// SplitMix64: the same on every machine.
std::uint64_t random_bits(std::uint64_t& state) {
  std::uint64_t bits = state += 0x9E3779B97F4A7C15;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

// A batch has two phases. First each example is computed with the weights before the batch; then
// each shard of the weights is updated by all examples in their order. So it does not matter which
// thread does what.
class LanguageTrainer {
 public:
  LanguageTrainer(const LanguageCorpus& corpus, const LanguageTrainingOptions& options)
      : options_(options),
        dim_(static_cast<std::size_t>(options.arguments.dim)),
        labels_(corpus.labels.size()),
        rows_(1 + static_cast<std::size_t>(options.arguments.bucket)),
        input_(rows_ * dim_),
        input_squares_(rows_),
        output_(labels_ * dim_),
        output_squares_(labels_) {
    for (const LanguageCorpus::Document& document : corpus.documents)
      if (!document.held_out)
        for (const std::string_view piece : language_pieces(corpus.text_of(document)))
          pieces_.push_back({piece, document.label});
    // The vectors of n-grams begin at 0, so that one that was never seen says nothing.
    std::uint64_t state = 0;
    for (float& weight : output_)
      weight = static_cast<float>(random_bits(state) >> 40) * 0x1p-23f - 1;
    for (Example& example : examples_) {
      example.hidden.resize(dim_);
      example.gradient.resize(dim_);
      example.error.resize(labels_);
    }
  }

  void run() {
    const std::size_t threads = options_.threads > 0
                                    ? static_cast<std::size_t>(options_.threads)
                                    : std::max(1U, std::thread::hardware_concurrency());
    const std::size_t all = pieces_.size() * static_cast<std::size_t>(options_.epochs);
    const auto report = [&]() noexcept { next_ = 0; };
    std::barrier meet(static_cast<std::ptrdiff_t>(threads), report);
    const auto work = [&](bool first) {
      for (std::size_t begin = 0; begin < all; begin += kTrainingBatch) {
        const std::size_t count = std::min(kTrainingBatch, all - begin);
        for (std::size_t i = next_++; i < count; i = next_++) compute(begin + i, examples_[i]);
        meet.arrive_and_wait();
        const double left = 1 - static_cast<double>(begin) / static_cast<double>(all);
        const auto rate = static_cast<float>(options_.learning_rate * left);
        for (std::size_t shard = next_++; shard < kWeightShards; shard = next_++)
          update(shard, count, rate);
        meet.arrive_and_wait();
        if (first) shuffle_between(begin + count);
        if (first && options_.progress)
          options_.progress(static_cast<std::int64_t>(begin + count),
                            static_cast<std::int64_t>(all));
        meet.arrive_and_wait();
      }
    };
    order_.resize(pieces_.size());
    std::iota(order_.begin(), order_.end(), 0);
    shuffle();
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&] { work(false); });
    work(true);
  }

  std::string file(const std::vector<std::string>& labels) const;

 private:
  struct Piece {
    std::string_view text;
    std::int32_t label;
  };
  struct Example {
    std::vector<std::uint32_t> rows = {};  // sorted by shard
    std::vector<std::uint32_t> unsorted = {};
    std::size_t shard_begin[kWeightShards + 1] = {};
    std::vector<float> hidden = {}, gradient = {}, error = {};
    std::string marked = {};
  };

  void shuffle() {
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[random_bits(order_state_) % i]);
  }
  // A batch may be in two epochs; the new order then begins with the next batch.
  void shuffle_between(std::size_t done) {
    if (done % pieces_.size() < kTrainingBatch) shuffle();
  }

  static std::size_t shard_of(std::uint32_t row) { return row % kWeightShards; }

  void find_rows(std::string_view text, Example& example) const {
    const FastTextArguments& a = options_.arguments;
    example.unsorted.assign(1, 0);  // </s>
    for (std::string_view word; next_fasttext_word(text, word);) {
      example.marked.assign("<").append(word).append(">");
      for_each_ngram(example.marked, a.min_n, a.max_n, [&](std::uint32_t hash) {
        example.unsorted.push_back(1 + hash % static_cast<std::uint32_t>(a.bucket));
      });
    }
    auto& begin = example.shard_begin;
    std::fill(std::begin(begin), std::end(begin), 0);
    for (const std::uint32_t row : example.unsorted) ++begin[shard_of(row) + 1];
    for (std::size_t i = 0; i < kWeightShards; ++i) begin[i + 1] += begin[i];
    std::size_t at[kWeightShards];
    std::copy(begin, begin + kWeightShards, at);
    example.rows.resize(example.unsorted.size());
    for (const std::uint32_t row : example.unsorted) example.rows[at[shard_of(row)]++] = row;
  }

  void compute(std::size_t number, Example& example) const {
    const Piece& piece = pieces_[order_[number % pieces_.size()]];
    find_rows(piece.text, example);
    std::fill(example.hidden.begin(), example.hidden.end(), 0.0F);
    for (const std::uint32_t row : example.rows) {
      const float* const weights = &input_[row * dim_];
      for (std::size_t i = 0; i < dim_; ++i) example.hidden[i] += weights[i];
    }
    const float scale = 1 / static_cast<float>(example.rows.size());
    for (float& value : example.hidden) value *= scale;
    float most = -INFINITY, sum = 0;
    for (std::size_t label = 0; label < labels_; ++label) {
      float logit = 0;
      for (std::size_t i = 0; i < dim_; ++i) logit += output_[label * dim_ + i] * example.hidden[i];
      example.error[label] = logit;
      most = std::max(most, logit);
    }
    for (float& value : example.error) sum += value = std::exp(value - most);
    for (float& value : example.error) value /= sum;
    example.error[static_cast<std::size_t>(piece.label)] -= 1;
    std::fill(example.gradient.begin(), example.gradient.end(), 0.0F);
    for (std::size_t label = 0; label < labels_; ++label)
      for (std::size_t i = 0; i < dim_; ++i)
        example.gradient[i] += example.error[label] * output_[label * dim_ + i];
    for (float& value : example.gradient) value *= scale;
  }

  // Adagrad with one sum of squares for each row.
  void step(float* weights, float& squares, const float* gradient, float rate) const {
    float square = 0;
    for (std::size_t i = 0; i < dim_; ++i) square += gradient[i] * gradient[i];
    squares += square / static_cast<float>(dim_);
    if (squares <= 0) return;
    const float scale = rate / std::sqrt(squares);
    for (std::size_t i = 0; i < dim_; ++i) weights[i] -= scale * gradient[i];
  }

  void update(std::size_t shard, std::size_t count, float rate) {
    for (std::size_t e = 0; e < count; ++e) {
      const Example& example = examples_[e];
      for (std::size_t k = example.shard_begin[shard]; k < example.shard_begin[shard + 1]; ++k) {
        const std::size_t row = example.rows[k];
        step(&input_[row * dim_], input_squares_[row], example.gradient.data(), rate);
      }
    }
    std::vector<float> gradient(dim_);
    for (std::size_t label = shard; label < labels_; label += kWeightShards) {
      std::fill(gradient.begin(), gradient.end(), 0.0F);
      for (std::size_t e = 0; e < count; ++e)
        for (std::size_t i = 0; i < dim_; ++i)
          gradient[i] += examples_[e].error[label] * examples_[e].hidden[i];
      step(&output_[label * dim_], output_squares_[label], gradient.data(), rate);
    }
  }

  const LanguageTrainingOptions& options_;
  const std::size_t dim_, labels_, rows_;
  std::vector<float> input_, input_squares_, output_, output_squares_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> order_;
  std::uint64_t order_state_ = 1;
  std::vector<Example> examples_{kTrainingBatch};
  std::atomic<std::size_t> next_ = 0;  // example or shard of the phase
};

template <class T>
void append_value(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_matrix(std::string& bytes, const std::vector<float>& values, std::size_t columns) {
  append_value<std::uint8_t>(bytes, 0);  // not quantized
  append_value(bytes, static_cast<std::int64_t>(values.size() / columns));
  append_value(bytes, static_cast<std::int64_t>(columns));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::string LanguageTrainer::file(const std::vector<std::string>& labels) const {
  const FastTextArguments& a = options_.arguments;
  std::vector<std::int64_t> counts(labels_);
  for (const Piece& piece : pieces_) ++counts[static_cast<std::size_t>(piece.label)];
  std::string bytes;
  bytes.reserve(input_.size() * sizeof(float) + (1U << 20));
  // Window, epochs, least count, negative samples and update rate are without effect.
  for (const std::int32_t value :
       {793712314, 12, a.dim, 5, options_.epochs, 1, 5, 1, 3, 3, a.bucket, a.min_n, a.max_n, 100})
    append_value(bytes, value);
  append_value(bytes, 1e-4);
  append_value(bytes, static_cast<std::int32_t>(labels_ + 1));
  append_value(bytes, std::int32_t{1});
  append_value(bytes, static_cast<std::int32_t>(labels_));
  append_value(bytes, std::ssize(pieces_));
  append_value(bytes, std::int64_t{-1});  // not pruned
  const auto entry = [&](const std::string& word, std::int64_t count, std::uint8_t type) {
    bytes.append(word).push_back('\0');
    append_value(bytes, count);
    append_value(bytes, type);
  };
  entry("</s>", std::ssize(pieces_), 0);
  for (std::size_t i = 0; i < labels_; ++i) entry("__label__" + labels[i], counts[i], 1);
  append_matrix(bytes, input_, dim_);
  append_matrix(bytes, output_, dim_);
  return bytes;
}

}  // namespace

LanguageCorpus read_language_corpus(const std::vector<LanguageFiles>& languages,
                                    const LanguageCorpusOptions& options) {
  return CorpusBuilder(options).build(languages);
}

std::vector<std::string_view> language_pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const std::size_t bytes = kPieceBytes[pieces.size() % std::size(kPieceBytes)];
    const std::size_t end = piece_end(text, bytes, " \n\r\t\v\f");
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
    const std::size_t next = text.find_first_not_of(" \n\r\t\v\f");
    text.remove_prefix(std::min(next, text.size()));
  }
  return pieces;
}

std::string train_language_model(const LanguageCorpus& corpus,
                                 const LanguageTrainingOptions& options) {
  LanguageTrainer trainer(corpus, options);
  trainer.run();
  return trainer.file(corpus.labels);
}

}  // namespace kintsugi
