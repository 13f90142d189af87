#include "data/dedup/record_makers.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "data/curation/words.h"

namespace kintsugi {
namespace {

// The low half of a hash chooses the bucket: the least of some hashes all have zeros at the top.
std::size_t bucket_of(std::uint64_t hash, std::size_t buckets) {
  return static_cast<std::size_t>((hash & UINT32_MAX) * buckets >> 32);
}

// A record per band: the values of a document that are equal in similar ones.
class Signatures : public RecordMaker {
 public:
  explicit Signatures(const DedupOptions& options)
      : by_(options.by), minhash_(options.shape), form_(signature_form(options)) {}

  RecordForm form() const override { return form_; }
  std::size_t buckets() const override {
    return by_ == DedupBy::Words ? static_cast<std::size_t>(minhash_.shape().bands) : 1;
  }

  void make(const DedupDocuments::Entry& entry, const std::vector<Mark>&, Scratch& scratch,
            RecordBatch& records) const override {
    std::vector<std::uint64_t>& values = scratch.signature;
    if (!sign(entry, scratch, values)) return;
    for (std::size_t bucket = 0; bucket < buckets(); ++bucket)
      records.add(bucket, form_, values.data() + bucket * form_.rows, entry.number);
  }

 private:
  bool sign(const DedupDocuments::Entry& entry, Scratch& scratch,
            std::vector<std::uint64_t>& values) const {
    if (by_ == DedupBy::Words) return minhash_.signature(entry.text, scratch.minhash, values);
    const std::string& text = by_ == DedupBy::Url ? entry.url : entry.text;
    const TextDigest digest = text_digest(text);
    values = {digest.high, digest.low};
    return !text.empty();
  }

  DedupBy by_;
  MinHash minhash_;
  RecordForm form_;
};

// A record per paragraph or line that is long enough.
class Paragraphs : public RecordMaker {
 public:
  explicit Paragraphs(const DedupOptions& options)
      : kind_(piece_kind(options.by)),
        buckets_(options.buckets),
        shortest_(options.shortest_paragraph) {}

  RecordForm form() const override { return kSequenceForm; }
  std::size_t buckets() const override { return buckets_; }

  void make(const DedupDocuments::Entry& entry, const std::vector<Mark>&, Scratch& scratch,
            RecordBatch& records) const override {
    cut_into_pieces(entry.text, kind_, scratch.pieces);
    DedupText& normalized = scratch.minhash.text;
    for (std::size_t piece = 0; piece < scratch.pieces.size(); ++piece) {
      make_dedup_text(scratch.pieces.of(entry.text, piece), normalized);
      if (static_cast<std::size_t>(character_count(normalized.text)) < shortest_) continue;
      const TextDigest digest = text_digest(normalized.text);
      const std::uint64_t values[] = {digest.high, digest.low};
      records.add(bucket_of(digest.high, buckets_), kSequenceForm, values,
                  place_of(entry.number, piece));
    }
  }

 private:
  PieceKind kind_;
  std::size_t buckets_, shortest_;
};

// What the records of sequences of words have in common.
class WordRecords : public RecordMaker {
 public:
  explicit WordRecords(const DedupOptions& options)
      : length_(options.substring_words), buckets_(options.buckets) {}
  std::size_t buckets() const override { return buckets_; }

 protected:
  const SequenceSamples& sample(const DedupDocuments::Entry& entry, Scratch& scratch) const {
    cut_into_pieces(entry.text, PieceKind::Words, scratch.pieces);
    scratch.words.resize(scratch.pieces.size());
    for (std::size_t i = 0; i < scratch.words.size(); ++i)
      scratch.words[i] = hash64(scratch.pieces.of(entry.text, i));
    if (!scratch.samples) scratch.samples = std::make_unique<SequenceSamples>(length_);
    scratch.samples->compute(scratch.words);
    return *scratch.samples;
  }

  std::size_t length_, buckets_;
};

class Samples : public WordRecords {
 public:
  using WordRecords::WordRecords;
  RecordForm form() const override { return kSampleForm; }

  void make(const DedupDocuments::Entry& entry, const std::vector<Mark>&, Scratch& scratch,
            RecordBatch& records) const override {
    const SequenceSamples& samples = sample(entry, scratch);
    for (std::size_t i = 0; i < samples.sequences(); ++i) {
      const std::size_t at = samples.sample_of(i);
      if (i > 0 && at == samples.sample_of(i - 1)) continue;
      const std::uint64_t hash = samples.hash(at);
      records.add(bucket_of(hash, buckets_), kSampleForm, &hash, place_of(entry.number, at));
    }
  }
};

// A record per sequence whose sample is marked as occurring several times.
class Sequences : public WordRecords {
 public:
  using WordRecords::WordRecords;
  RecordForm form() const override { return kSequenceForm; }

  void make(const DedupDocuments::Entry& entry, const std::vector<Mark>& marks, Scratch& scratch,
            RecordBatch& records) const override {
    if (marks.empty()) return;
    const SequenceSamples& samples = sample(entry, scratch);
    join(entry.text, scratch);
    auto mark = marks.begin();
    for (std::size_t i = 0; i < samples.sequences(); ++i) {
      while (mark != marks.end() && mark->piece < samples.sample_of(i)) ++mark;
      if (mark == marks.end()) return;
      if (mark->piece != samples.sample_of(i)) continue;
      const TextDigest digest = text_digest(scratch.minhash.text.slice(i, length_));
      const std::uint64_t values[] = {digest.high, digest.low};
      records.add(bucket_of(digest.high, buckets_), kSequenceForm, values,
                  place_of(entry.number, i));
    }
  }

 private:
  // The words with one space between them.
  static void join(std::string_view text, Scratch& scratch) {
    DedupText& joined = scratch.minhash.text;
    joined.text.clear();
    joined.words.clear();
    for (std::size_t i = 0; i < scratch.pieces.size(); ++i) {
      if (i > 0) joined.text += ' ';
      joined.words.push_back(static_cast<std::uint32_t>(joined.text.size()));
      joined.text += scratch.pieces.of(text, i);
    }
  }
};

}  // namespace

std::unique_ptr<RecordMaker> RecordMaker::of(DedupStage stage, const DedupOptions& options) {
  if (stage == DedupStage::Signatures) return std::make_unique<Signatures>(options);
  if (stage == DedupStage::Samples) return std::make_unique<Samples>(options);
  if (options.by == DedupBy::Substrings) return std::make_unique<Sequences>(options);
  return std::make_unique<Paragraphs>(options);
}

}  // namespace kintsugi
