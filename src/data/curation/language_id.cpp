#include "data/curation/language_id.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::string_view kLabelPrefix = "__label__", kEndOfLine = "</s>";
constexpr std::int64_t kCentroids = 256;
constexpr std::size_t kPrefetched = 8;  // rows

float float_at(const std::byte* data, std::int64_t i) {
  float value = 0;
  std::memcpy(&value, data + 4 * i, 4);
  return value;
}

// fastText's logarithm, in double precision and rounded.
float shifted_log(float x) { return static_cast<float>(std::log(x + 1e-5)); }

// fastText's table of 512 values.
float table_sigmoid(float x) {
  if (std::isnan(x)) return x;
  if (x < -8) return 0;
  if (x > 8) return 1;
  const auto step = static_cast<std::int64_t>((x + 8) * 512 / 8 / 2);
  const float at = static_cast<float>(step * 16) / 512 - 8;
  return static_cast<float>(1.0 / (1.0 + std::exp(-at)));
}

}  // namespace

// Reads a file of fastText from its beginning, and checks what it reads.
class LanguageModel::Reader {
 public:
  Reader(const std::string& name, std::span<const std::byte> bytes) : name_(name), rest_(bytes) {}

  template <class T>
  T value() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::int32_t number(const char* what, std::int64_t low, std::int64_t high) {
    const auto number = value<std::int32_t>();
    if (number < low || number > high) refuse("{} is {}", what, number);
    return number;
  }
  bool flag(const char* what) {
    const auto byte = value<std::uint8_t>();
    if (byte > 1) refuse("the flag '{}' is {}", what, byte);
    return byte == 1;
  }
  std::string_view string() {
    const auto* const begin = reinterpret_cast<const char*>(rest_.data());
    const auto* const end = static_cast<const char*>(std::memchr(begin, 0, rest_.size()));
    if (end == nullptr) refuse("it ends within a word");
    const std::string_view text(begin, static_cast<std::size_t>(end - begin));
    take(text.size() + 1);
    return text;
  }
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > rest_.size()) refuse("it is cut off");
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  std::size_t left() const { return rest_.size(); }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{} is not a usable fastText model: {}", name_,
               fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const std::string& name_;
  std::span<const std::byte> rest_;
};

// Rows of floats in the file, or of codes of a product quantizer: each code stands for `width`
// values of the row.
struct LanguageModel::Matrix {
  std::int64_t rows = 0, columns = 0;
  const std::byte* floats = nullptr;
  const std::uint8_t *codes = nullptr, *norm_codes = nullptr;
  std::int64_t codes_per_row = 0, width = 0, last_width = 0;
  std::vector<float> centroids = {}, norms = {};

  void read(Reader& reader, std::int64_t dim, bool quantized);
  void read_codes(Reader& reader);

  // Calls with(first column, values, count) for the pieces of a row, and returns its norm.
  template <class With>
  float for_codes(std::int64_t row, With&& with) const {
    for (std::int64_t k = 0; k < codes_per_row; ++k) {
      const std::int64_t count = k == codes_per_row - 1 ? last_width : width;
      const std::int64_t code = codes[row * codes_per_row + k];
      with(k * width, &centroids[static_cast<std::size_t>(k * kCentroids * width + code * count)],
           count);
    }
    return norm_codes != nullptr ? norms[norm_codes[row]] : 1;
  }

  // Adds the rows to `sum` in their order.
  void add_rows(std::span<const std::int32_t> rows, std::span<float> sum) const {
    if (floats == nullptr) {
      for (const std::int32_t row : rows) add_codes(row, sum);
      return;
    }
    std::int64_t first = 0;
    for (; first + 16 <= columns; first += 16) add_columns<16>(rows, first, sum);
    for (; first + 4 <= columns; first += 4) add_columns<4>(rows, first, sum);
    for (; first < columns; ++first) add_columns<1>(rows, first, sum);
  }

  // So many columns, which stay in registers.
  template <std::int64_t kCount>
  void add_columns(std::span<const std::int32_t> rows, std::int64_t first,
                   std::span<float> sum) const {
    std::array<float, kCount> total{};
    const std::byte* const begin = floats + 4 * first;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (k + kPrefetched < rows.size())
        __builtin_prefetch(begin + 4 * columns * rows[k + kPrefetched]);
      const std::byte* const values = begin + 4 * columns * rows[k];
      for (std::int64_t i = 0; i < kCount; ++i)
        total[static_cast<std::size_t>(i)] += float_at(values, i);
    }
    std::copy(total.begin(), total.end(), sum.begin() + first);
  }

  void add_codes(std::int64_t row, std::span<float> sum) const {
    const float norm = norm_codes != nullptr ? norms[norm_codes[row]] : 1;
    for_codes(row, [&](std::int64_t first, const float* values, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        sum[static_cast<std::size_t>(first + i)] += norm * values[i];
    });
  }

  float dot_row(std::int64_t row, std::span<const float> x) const {
    float sum = 0;
    if (floats != nullptr) {
      const std::byte* const values = floats + 4 * row * columns;
      for (std::int64_t i = 0; i < columns; ++i)
        sum += float_at(values, i) * x[static_cast<std::size_t>(i)];
      return sum;
    }
    const float norm =
        for_codes(row, [&](std::int64_t first, const float* values, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i)
            sum += x[static_cast<std::size_t>(first + i)] * values[i];
        });
    return sum * norm;
  }
};

void LanguageModel::Matrix::read(Reader& reader, std::int64_t dim, bool quantized) {
  const bool has_norms = quantized && reader.flag("norms");
  rows = reader.value<std::int64_t>();
  columns = reader.value<std::int64_t>();
  if (columns != dim) reader.refuse("its vectors have {} and {} values", dim, columns);
  if (rows < 0 || static_cast<std::uint64_t>(rows) > reader.left())
    reader.refuse("a matrix has {} rows", rows);
  if (!quantized) {
    if (static_cast<std::uint64_t>(rows) > reader.left() / 4 / static_cast<std::uint64_t>(dim))
      reader.refuse("it is cut off");
    floats = reader.take(static_cast<std::size_t>(4 * rows * dim)).data();
    return;
  }
  read_codes(reader);
  if (!has_norms) return;
  norm_codes =
      reinterpret_cast<const std::uint8_t*>(reader.take(static_cast<std::size_t>(rows)).data());
  for (const char* what : {"dimension", "number of codes", "width", "last width"})
    reader.number(what, 1, 1);  // of the norms' own quantizer
  norms.resize(kCentroids);
  std::memcpy(norms.data(), reader.take(4 * kCentroids).data(), 4 * kCentroids);
}

void LanguageModel::Matrix::read_codes(Reader& reader) {
  const std::int64_t count = reader.value<std::int32_t>();
  if (count < 0) reader.refuse("a matrix has {} codes", count);
  codes =
      reinterpret_cast<const std::uint8_t*>(reader.take(static_cast<std::size_t>(count)).data());
  reader.number("the dimension of the codes", columns, columns);
  codes_per_row = reader.number("the number of codes of a row", 1, columns);
  width = reader.number("the width of a code", 1, columns);
  last_width = reader.number("the width of the last code", 1, width);
  if ((codes_per_row - 1) * width + last_width != columns || codes_per_row * rows != count)
    reader.refuse("{} codes do not fit {} rows of {} values", count, rows, columns);
  centroids.resize(static_cast<std::size_t>(columns * kCentroids));
  const std::size_t bytes = centroids.size() * sizeof(float);
  std::memcpy(centroids.data(), reader.take(bytes).data(), bytes);
}

// ---- reading a model

LanguageModel::LanguageModel(const std::filesystem::path& path)
    : name_(path.string()), file_(path) {
  Reader reader(name_, file_.bytes());
  if (reader.left() < 8 || reader.value<std::int32_t>() != 793712314)
    user_error("{} is no fastText model: it begins with other bytes", name_);
  const std::int32_t version = reader.number("its version", 11, 12);
  arguments_.dim = reader.number("the dimension", 1, 1 << 16);
  reader.take(12);  // window, epochs, least count
  reader.take(4);   // negative samples
  arguments_.word_ngrams = reader.number("the length of word n-grams", 0, 1000);
  arguments_.loss = reader.number("the loss", 1, 4);
  if (reader.value<std::int32_t>() != 3)
    reader.refuse("it has vectors of words, and is no classifier");
  arguments_.bucket = reader.number("the number of buckets", 0, INT32_MAX);
  arguments_.min_n = reader.number("the least n", 0, 1000);
  arguments_.max_n = reader.number("the largest n", 0, 1000);
  if (version == 11) arguments_.max_n = 0;
  if (arguments_.bucket == 0 && (arguments_.max_n > 0 || arguments_.word_ngrams > 1))
    reader.refuse("it has n-grams, but no buckets for them");
  reader.take(4 + 8);  // update rate, sampling threshold
  read_dictionary(reader);
  read_matrices(reader);
  index_words();
  file_.check_intact();
}

LanguageModel::~LanguageModel() = default;

void LanguageModel::read_dictionary(Reader& reader) {
  const std::int32_t size = reader.number("the number of words", 1, INT32_MAX);
  word_count_ = reader.number("the number of words", 0, size);
  const std::int32_t labels = reader.number("the number of labels", 1, size);
  reader.value<std::int64_t>();  // words of the training text
  const auto kept = reader.value<std::int64_t>();
  if (labels != size - word_count_ || static_cast<std::size_t>(size) > reader.left() / 10)
    reader.refuse("{} words and {} labels are not {} entries", word_count_, labels, size);
  std::vector<std::int64_t> counts;
  for (std::int32_t i = 0; i < size; ++i) {
    words_.push_back(reader.string());
    const auto count = reader.value<std::int64_t>();
    const bool is_label = reader.flag("label");
    if (is_label != (i >= word_count_)) reader.refuse("words and labels are mixed");
    if (!is_label) continue;
    if (count < 0 || count > 1'000'000'000'000) reader.refuse("a label has {} examples", count);
    counts.push_back(count);
    std::string_view label = words_.back();
    if (label.starts_with(kLabelPrefix)) label.remove_prefix(kLabelPrefix.size());
    labels_.emplace_back(label);
  }
  pruned_ = kept >= 0;
  if (kept > 0 && static_cast<std::uint64_t>(kept) > reader.left() / 8)
    reader.refuse("it is cut off");
  for (std::int64_t i = 0; i < kept; ++i) {
    const auto bucket = reader.value<std::int32_t>();
    kept_.emplace_back(bucket, reader.value<std::int32_t>());
  }
  std::sort(kept_.begin(), kept_.end());
  if (arguments_.loss == 1) build_tree(counts);
}

void LanguageModel::read_matrices(Reader& reader) {
  const bool quantized = reader.flag("quantized");
  input_ = std::make_unique<Matrix>();
  input_->read(reader, arguments_.dim, quantized);
  if (!quantized && pruned_) reader.refuse("only quantized models are pruned");
  const std::int64_t ngrams = input_->rows - word_count_;
  if (ngrams < 0 || (!pruned_ && ngrams != arguments_.bucket))
    reader.refuse("{} rows are not those of {} words and {} buckets", input_->rows, word_count_,
                  arguments_.bucket);
  for (const auto& [bucket, row] : kept_)
    if (bucket < 0 || row < 0 || row >= ngrams) reader.refuse("row {} does not exist", row);
  const bool quantized_output = reader.flag("quantized output");
  output_ = std::make_unique<Matrix>();
  output_->read(reader, arguments_.dim, quantized && quantized_output);
  if (output_->rows != std::ssize(labels_))
    reader.refuse("it has {} labels, and outputs for {}", labels_.size(), output_->rows);
  if (reader.left() > 0) reader.refuse("{} bytes follow its end", reader.left());
}

void LanguageModel::index_words() {
  index_.assign(words_.size() * 2, -1);
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::size_t at = fasttext_hash(words_[i]) % index_.size();
    while (index_[at] >= 0) at = (at + 1) % index_.size();
    index_[at] = static_cast<std::int32_t>(i);
  }
}

// Huffman's tree as fastText builds it: the labels are sorted by falling counts, and of equally
// frequent ones an inner node is merged first. Inner node i has the number labels + i.
void LanguageModel::build_tree(std::span<const std::int64_t> counts) {
  const auto labels = static_cast<std::int32_t>(counts.size());
  std::vector<std::int64_t> sums;
  std::int32_t leaf = labels - 1, node = 0;
  const auto take = [&](std::int64_t& sum) {
    const bool has_node = node < static_cast<std::int32_t>(sums.size());
    if (leaf >= 0 && (!has_node || counts[static_cast<std::size_t>(leaf)] <
                                       sums[static_cast<std::size_t>(node)])) {
      sum += counts[static_cast<std::size_t>(leaf)];
      return leaf--;
    }
    sum += sums[static_cast<std::size_t>(node)];
    return labels + node++;
  };
  for (std::int32_t i = 0; i + 1 < labels; ++i) {
    std::int64_t sum = 0;
    const std::int32_t left = take(sum), right = take(sum);
    tree_.emplace_back(left, right);
    sums.push_back(sum);
  }
}

// ---- predictions

std::uint32_t fasttext_hash(std::string_view text) {
  std::uint32_t hash = 2166136261;
  for (const char c : text)
    hash = (hash ^ static_cast<std::uint32_t>(static_cast<std::int8_t>(c))) * 16777619;
  return hash;
}

bool next_fasttext_word(std::string_view& text, std::string_view& word) {
  constexpr std::string_view kSpaces(" \n\r\t\v\f\0", 7);
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return false;
  text.remove_prefix(begin);
  word = text.substr(0, text.find_first_of(kSpaces));
  text.remove_prefix(word.size());
  return true;
}

std::int32_t LanguageModel::id_of(std::string_view word, std::uint32_t hash) const {
  std::size_t at = hash % index_.size();
  while (index_[at] >= 0 && words_[static_cast<std::size_t>(index_[at])] != word)
    at = (at + 1) % index_.size();
  return index_[at];
}

void LanguageModel::add_bucket(std::uint64_t bucket, std::vector<std::int32_t>& rows) const {
  auto row = static_cast<std::int32_t>(bucket);
  if (pruned_) {
    const auto found = std::lower_bound(kept_.begin(), kept_.end(), std::pair(row, 0));
    if (found == kept_.end() || found->first != row) return;
    row = found->second;
  }
  rows.push_back(word_count_ + row);
}

// The rows of the words and n-grams of a line, which "</s>" ends.
std::vector<std::int32_t> LanguageModel::rows_of(std::string_view text) const {
  std::vector<std::int32_t> rows, hashes;
  std::string marked;
  const auto buckets = static_cast<std::uint32_t>(arguments_.bucket);
  // Remainders of 32 bits by two multiplications (Lemire, Kaser and Kurz, 2019).
  const std::uint64_t inverse = buckets > 0 ? ~std::uint64_t{0} / buckets + 1 : 0;
  const auto remainder = [&](std::uint32_t value) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(inverse * value) * buckets >>
                                      64);
  };
  for (std::string_view word; word != kEndOfLine;) {
    if (!next_fasttext_word(text, word)) word = kEndOfLine;
    const std::uint32_t hash = fasttext_hash(word);
    const std::int32_t id = id_of(word, hash);
    if (id >= word_count_ || (id < 0 && word.starts_with(kLabelPrefix))) continue;
    hashes.push_back(static_cast<std::int32_t>(hash));
    if (id >= 0) rows.push_back(id);
    if (word == kEndOfLine || arguments_.max_n == 0) continue;
    marked.assign("<").append(word).append(">");
    for_each_ngram(marked, arguments_.min_n, arguments_.max_n,
                   [&](std::uint32_t ngram) { add_bucket(remainder(ngram), rows); });
  }
  const auto extended = [&](std::size_t i) {  // by its sign
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(hashes[i]));
  };
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    std::uint64_t hash = extended(i);
    const std::size_t end =
        std::min(hashes.size(), i + static_cast<std::size_t>(arguments_.word_ngrams));
    for (std::size_t j = i + 1; j < end; ++j) {
      hash = hash * 116049371 + extended(j);
      add_bucket(hash % buckets, rows);
    }
  }
  return rows;
}

std::vector<float> LanguageModel::hidden_of(std::span<const std::int32_t> rows) const {
  std::vector<float> hidden(static_cast<std::size_t>(arguments_.dim));
  input_->add_rows(rows, hidden);
  const auto scale = static_cast<float>(1.0 / static_cast<double>(rows.size()));
  for (float& value : hidden) value *= scale;
  return hidden;
}

std::pair<std::size_t, float> LanguageModel::best_of_all(std::span<const float> hidden) const {
  std::vector<float> output(labels_.size());
  for (std::size_t i = 0; i < output.size(); ++i)
    output[i] = output_->dot_row(static_cast<std::int64_t>(i), hidden);
  if (arguments_.loss == 3) {
    const float most = *std::max_element(output.begin(), output.end());
    float sum = 0;
    for (float& value : output) sum += value = std::exp(value - most);
    for (float& value : output) value /= sum;
  } else {
    for (float& value : output) value = table_sigmoid(value);
  }
  std::size_t best = 0;  // of equal ones the last
  for (std::size_t i = 0; i < output.size(); ++i)
    if (!(shifted_log(output[i]) < shifted_log(output[best]))) best = i;
  return {best, shifted_log(output[best])};
}

// The leaf with the highest product along its path, searched as fastText does: the logarithms are
// shifted, so that the order matters for the last digits.
std::pair<std::size_t, float> LanguageModel::best_of_tree(std::span<const float> hidden) const {
  struct Node {
    std::int32_t number;
    float score;
  };
  const auto labels = static_cast<std::int32_t>(labels_.size());
  const float least = shifted_log(0);
  std::pair<std::size_t, float> best(labels_.size(), least);
  std::vector<Node> open = {{labels + static_cast<std::int32_t>(tree_.size()) - 1, 0}};
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    if (node.score < least) continue;
    if (best.first < labels_.size() && node.score < best.second) continue;
    if (node.number < labels) {
      best = {static_cast<std::size_t>(node.number), node.score};
      continue;
    }
    const auto [left, right] = tree_[static_cast<std::size_t>(node.number - labels)];
    const float f = output_->dot_row(node.number - labels, hidden);
    const auto probability = static_cast<float>(1.0 / (1 + std::exp(-f)));
    open.push_back({right, node.score + shifted_log(probability)});
    open.push_back({left, node.score + shifted_log(static_cast<float>(1.0 - probability))});
  }
  return best;
}

LanguageGuess LanguageModel::guess(std::string_view text) const {
  const std::vector<std::int32_t> rows = rows_of(text);
  if (rows.empty()) return {};
  const std::vector<float> hidden = hidden_of(rows);
  const auto [best, score] = arguments_.loss == 1 ? best_of_tree(hidden) : best_of_all(hidden);
  file_.check_intact();
  if (std::isnan(score)) user_error("{} has weights that are no numbers", name_);
  if (best >= labels_.size()) return {};
  return {labels_[best], std::exp(score)};
}

// ---- the filter

void LanguageFilter::open() {
  if (model.empty()) user_error("language: give the model, a file of fastText");
  opened = std::make_shared<const LanguageModel>(model);
  const auto& labels = opened->labels();
  for (const std::string& label : keep)
    if (std::find(labels.begin(), labels.end(), label) == labels.end())
      user_error(
          "{} has no label '{}', only {}{}", model, label,
          fmt::join(labels.begin(), labels.begin() + std::min<long>(std::ssize(labels), 20), ", "),
          labels.size() > 20 ? " and more" : "");
}

std::string_view LanguageFilter::removed_by(const LanguageGuess& guess) const {
  if (guess.label.empty()) return "language.none";
  if (!keep.empty() && std::find(keep.begin(), keep.end(), guess.label) == keep.end())
    return "language.other";
  return static_cast<double>(guess.probability) < threshold ? "language.unsure" : "";
}

}  // namespace kintsugi
