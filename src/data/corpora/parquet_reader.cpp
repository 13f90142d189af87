#include "data/corpora/parquet_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/shared_library.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {
namespace {

// DuckDB's C library: our declarations of what we use.
struct Result {
  std::uint64_t columns, rows, changed;
  void *values, *error, *data;
};
using Handle = void*;

// duckdb_open_ext, and so on; the codes are 0 for success.
struct Functions {
  const char* (*library_version)();
  int (*create_config)(Handle*);
  int (*set_config)(Handle, const char*, const char*);
  void (*destroy_config)(Handle*);
  int (*open_ext)(const char*, Handle*, Handle, char**);
  int (*connect)(Handle, Handle*);
  void (*disconnect)(Handle*);
  void (*free)(void*);
  int (*prepare)(Handle, const char*, Handle*);
  const char* (*prepare_error)(Handle);
  void (*destroy_prepare)(Handle*);
  int (*pending_prepared_streaming)(Handle, Handle*);
  const char* (*pending_error)(Handle);
  void (*destroy_pending)(Handle*);
  int (*execute_pending)(Handle, Result*);
  const char* (*result_error)(Result*);
  void (*destroy_result)(Result*);
  Handle (*fetch_chunk)(Result);
  std::uint64_t (*data_chunk_get_size)(Handle);
  Handle (*data_chunk_get_vector)(Handle, std::uint64_t);
  void (*destroy_data_chunk)(Handle*);
  void* (*vector_get_data)(Handle);
  std::uint64_t* (*vector_get_validity)(Handle);
};

constexpr std::string_view kPackage =
#if defined(__aarch64__)
    "@duckdb/node-bindings-linux-arm64";
#else
    "@duckdb/node-bindings-linux-x64";
#endif

LibraryNames library_names() {
  const char* const given = std::getenv(kDuckdbVariable);
  const bool is_given = given != nullptr && *given != '\0';
  return {.files = {is_given ? given : "libduckdb.so"}, .stays_loaded = true};
}

class Library : public Functions {
 public:
  // Failure if it cannot be used.
  Library() : library_("/", library_names()) {
    const auto find = [this](const char* name, auto& function) {
      function = library_.find<std::remove_pointer_t<std::decay_t<decltype(function)>>>(name);
      if (function == nullptr) failure("{} has no function {}", library_.name(), name);
    };
    find("duckdb_library_version", library_version);
    // The functions that are deprecated or newer differ between versions; these do not.
    const std::string_view version = library_version();
    if (!version.starts_with("v1.") || version.starts_with("v1.0."))
      failure("{} is version {}, but 1.1 or a later 1.x is needed", library_.name(), version);
    find("duckdb_create_config", create_config);
    find("duckdb_set_config", set_config);
    find("duckdb_destroy_config", destroy_config);
    find("duckdb_open_ext", open_ext);
    find("duckdb_connect", connect);
    find("duckdb_disconnect", disconnect);
    find("duckdb_free", free);
    find("duckdb_prepare", prepare);
    find("duckdb_prepare_error", prepare_error);
    find("duckdb_destroy_prepare", destroy_prepare);
    find("duckdb_pending_prepared_streaming", pending_prepared_streaming);
    find("duckdb_pending_error", pending_error);
    find("duckdb_destroy_pending", destroy_pending);
    find("duckdb_execute_pending", execute_pending);
    find("duckdb_result_error", result_error);
    find("duckdb_destroy_result", destroy_result);
    find("duckdb_fetch_chunk", fetch_chunk);
    find("duckdb_data_chunk_get_size", data_chunk_get_size);
    find("duckdb_data_chunk_get_vector", data_chunk_get_vector);
    find("duckdb_destroy_data_chunk", destroy_data_chunk);
    find("duckdb_vector_get_data", vector_get_data);
    find("duckdb_vector_get_validity", vector_get_validity);
  }

 private:
  const SharedLibrary library_;
};

const Library& library() {
  static const Library loaded;  // tried again if it throws
  return loaded;
}

// One line, which may hold parts of a document.
std::string complaint(const char* text) {
  constexpr std::size_t kMost = 200;
  const std::string_view all = text != nullptr ? text : "unknown error";
  return printable(all.substr(0, std::min(kMost, all.find('\n'))));
}

class QueryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An empty database in memory, for all files: starting one takes as long as reading 10 MB. It is
// never closed: at exit that would use what DuckDB keeps per thread, which is freed before.
class Database {
 public:
  static const Database& instance() {
    static const Database* const one = new Database;  // tried again if it throws
    return *one;
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const Library& api() const { return api_; }
  Handle handle() const { return database_; }

 private:
  Database() : api_(library()) {
    Handle config = nullptr;
    api_.create_config(&config);
    for (const auto& [key, value] : {std::pair{"threads", "1"},
                                     {"memory_limit", "4GB"},
                                     {"temp_directory", ""},
                                     {"autoinstall_known_extensions", "false"},
                                     {"autoload_known_extensions", "false"}})
      api_.set_config(config, key, value);
    char* error = nullptr;
    const int code = api_.open_ext(nullptr, &database_, config, &error);
    api_.destroy_config(&config);
    const std::string why = code != 0 ? complaint(error) : "";
    if (error != nullptr) api_.free(error);
    if (code != 0) failure("DuckDB cannot be started: {}", why);
  }

  const Library& api_;
  Handle database_ = nullptr;
};

class Connection {
 public:
  Connection() : api_(Database::instance().api()) {
    if (api_.connect(Database::instance().handle(), &connection_) != 0)
      failure("DuckDB cannot be started");
  }
  ~Connection() { api_.disconnect(&connection_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Library& api() const { return api_; }
  Handle handle() const { return connection_; }

 private:
  const Library& api_;
  Handle connection_ = nullptr;
};

// The rows of a query, which is executed while they are fetched.
class Query {
 public:
  Query(const Connection& connection, const std::string& sql) : api_(connection.api()) {
    try {
      start(connection, sql);
    } catch (...) {
      clear();
      throw;
    }
  }
  ~Query() { clear(); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  bool next() {
    if (++row_ < size_) return true;
    if (chunk_ != nullptr) api_.destroy_data_chunk(&chunk_);
    do {
      chunk_ = api_.fetch_chunk(result_);
      if (chunk_ == nullptr) {
        if (const char* error = api_.result_error(&result_)) throw QueryError(complaint(error));
        size_ = row_ = 0;
        return false;
      }
      size_ = api_.data_chunk_get_size(chunk_);
      row_ = 0;
      if (size_ == 0) api_.destroy_data_chunk(&chunk_);
    } while (size_ == 0);
    return true;
  }
  bool is_null(std::uint64_t column) const {
    const std::uint64_t* const valid = api_.vector_get_validity(vector(column));
    return valid != nullptr && (valid[row_ / 64] >> (row_ % 64) & 1) == 0;
  }
  std::int64_t number(std::uint64_t column) const {
    return static_cast<const std::int64_t*>(api_.vector_get_data(vector(column)))[row_];
  }
  // 16 bytes: the length, and the text itself or its first four bytes and its address.
  std::string_view text(std::uint64_t column) const {
    constexpr std::uint32_t kInline = 12;
    const char* const entry =
        static_cast<const char*>(api_.vector_get_data(vector(column))) + 16 * row_;
    std::uint32_t length = 0;
    const char* address = entry + 4;
    std::memcpy(&length, entry, sizeof length);
    if (length > kInline) std::memcpy(&address, entry + 8, sizeof address);
    return {address, length};
  }

 private:
  Handle vector(std::uint64_t column) const { return api_.data_chunk_get_vector(chunk_, column); }

  void start(const Connection& connection, const std::string& sql) {
    if (api_.prepare(connection.handle(), sql.c_str(), &statement_) != 0)
      throw QueryError(complaint(api_.prepare_error(statement_)));
    if (api_.pending_prepared_streaming(statement_, &pending_) != 0)
      throw QueryError(complaint(api_.pending_error(pending_)));
    has_result_ = true;
    if (api_.execute_pending(pending_, &result_) != 0)
      throw QueryError(complaint(api_.result_error(&result_)));
  }
  void clear() {
    if (chunk_ != nullptr) api_.destroy_data_chunk(&chunk_);
    if (has_result_) api_.destroy_result(&result_);
    if (pending_ != nullptr) api_.destroy_pending(&pending_);
    if (statement_ != nullptr) api_.destroy_prepare(&statement_);
  }

  const Library& api_;
  Handle statement_ = nullptr, pending_ = nullptr, chunk_ = nullptr;
  Result result_{};
  bool has_result_ = false;
  std::uint64_t size_ = 0, row_ = 0;
};

std::string quoted_name(std::string_view name) {
  std::string text = "\"";
  for (const char c : name) text.append(c == '"' ? 2 : 1, c);
  return text + '"';
}

struct Column {
  std::string expression = {}, name = {};  // SQL; the key in JSON
  bool is_text = false;
};

}  // namespace

class ParquetReader::File {
 public:
  File(const std::filesystem::path& path, const std::vector<std::string>& keys,
       std::uint64_t first_row)
      : name_(path.string()),
        descriptor_(open_regular_file(path)),
        // A name could be a pattern, or be replaced meanwhile.
        source_(fmt::format("'/proc/self/fd/{}'", static_cast<int>(descriptor_))),
        row_(first_row) {
    change_settings();
    read_row_groups();
    if (row_ > rows_) user_error("{} has changed: it has fewer rows than before", name_);
    choose_columns(keys);
  }

  bool next(std::string& json) {
    while (row_ < rows_) {
      try {
        if (!query_) open();
        if (query_->next()) return append_row(json);
        if (row_ < end_) throw QueryError("it has fewer rows than its footer says");
        query_.reset();
        window_ = row_ == group_end(row_ - 1) ? 0 : 2 * window_;
      } catch (const QueryError& error) {
        narrow(error.what());
      }
    }
    return false;
  }

  // Of a page that cannot be read, the next row cannot be either: it jumps farther each time.
  SkippedInput skip_damage(const DamagedInput& damage) {
    const std::uint64_t begin = row_;
    jump_ = row_ == jumped_to_ ? 2 * jump_ : 1;
    row_ = jumped_to_ = std::min(row_ + jump_, group_end(begin));
    query_.reset();
    window_ = row_ == group_end(begin) ? 0 : 1;
    return {name_,    "row",           begin + 1,
            row_ + 1, damage.reason(), static_cast<std::int64_t>(row_ - begin)};
  }

  std::uint64_t row() const { return row_; }
  std::uint64_t rows() const { return rows_; }

 private:
  std::string table() const {
    return fmt::format("read_parquet({}, file_row_number=true, binary_as_string=true)", source_);
  }
  // DuckDB knows the file by its descriptor.
  std::string with_name(std::string reason) const {
    const std::string own = source_.substr(1, source_.size() - 2);
    for (std::size_t at; (at = reason.find(own)) != std::string::npos;)
      reason.replace(at, own.size(), name_.find(own) == std::string::npos ? name_ : "the file");
    return reason;
  }
  [[noreturn]] void damaged(const std::string& reason) const {
    throw DamagedInput(fmt::format("{} cannot be read at row {} ({}): write or copy it again",
                                   name_, row_ + 1, with_name(reason)),
                       with_name(reason), row_ + 1);
  }

  // Of this connection, or of all; older versions do not have them.
  void change_settings() const {
    for (const char* setting : {"streaming_buffer_size='1KB'",  // or 60,000 rows are read ahead
                                "enable_external_file_cache=false",  // knows files by descriptor
                                "parquet_metadata_cache=false"}) {
      try {
        Query(connection_, fmt::format("SET {}", setting)).next();
      } catch (const QueryError&) {
      }
    }
  }

  void read_row_groups() {
    constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
    try {
      Query query(connection_, fmt::format("SELECT DISTINCT row_group_id::BIGINT, "
                                           "row_group_num_rows::BIGINT FROM parquet_metadata({}) "
                                           "ORDER BY 1",
                                           source_));
      while (query.next()) {
        if (query.number(1) < 0 || query.number(1) > kMostRows)
          throw QueryError(fmt::format("a row group of {} rows", query.number(1)));
        group_ends_.push_back(rows_ += static_cast<std::uint64_t>(query.number(1)));
      }
    } catch (const QueryError& error) {
      throw DamagedInput(
          fmt::format("{} cannot be read as Parquet: {}", name_, with_name(error.what())),
          with_name(error.what()), 0);
    }
  }
  std::uint64_t group_end(std::uint64_t row) const {
    return *std::upper_bound(group_ends_.begin(), group_ends_.end(), row);
  }

  // With their types.
  std::vector<Column> described(const std::string& select) const {
    Query query(connection_, "DESCRIBE " + select);
    std::vector<Column> columns;
    while (query.next()) {
      const std::string name(query.text(0));
      columns.push_back({quoted_name(name), name, query.text(1) == "VARCHAR"});
    }
    return columns;
  }
  void choose_columns(const std::vector<std::string>& keys) {
    std::vector<Column> all;
    try {
      all = described(fmt::format("SELECT * EXCLUDE (file_row_number) FROM {}", table()));
    } catch (const QueryError& error) {
      user_error("{} cannot be read as Parquet: {}", name_, with_name(error.what()));
    }
    columns_ = keys.empty() ? all : std::vector<Column>();
    for (const std::string& key : keys) columns_.push_back(column_of(key, all));
  }
  Column column_of(const std::string& key, const std::vector<Column>& all) const {
    for (const Column& column : all)
      if (column.name == key) return column;
    std::string names;
    for (const Column& column : all) names += (names.empty() ? "" : ", ") + column.name;
    std::string expression;  // "a"."b" of a.b
    for (std::size_t begin = 0; begin <= key.size();) {
      const std::size_t end = std::min(key.find('.', begin), key.size());
      expression += (begin > 0 ? "." : "") + quoted_name(key.substr(begin, end - begin));
      begin = end + 1;
    }
    try {
      if (key.find('.') != std::string::npos) {
        const auto found =
            described(fmt::format("SELECT {} AS value FROM {}", expression, table()));
        return {expression, key, found.at(0).is_text};
      }
    } catch (const QueryError&) {  // it has no such member
    }
    user_error("{} has no column '{}': its columns are {}", name_, key, printable(names));
  }

  void open() {
    std::string select;
    for (const Column& column : columns_)
      select += column.is_text ? column.expression + ", "
                               : fmt::format("to_json({})::VARCHAR, ", column.expression);
    end_ = window_ == 0 ? rows_ : std::min(row_ + window_, group_end(row_));
    query_.emplace(connection_,
                   fmt::format("SELECT {}file_row_number FROM {} WHERE file_row_number >= {} AND "
                               "file_row_number < {}",
                               select, table(), row_, end_));
  }
  bool append_row(std::string& json) {
    const auto number = static_cast<std::uint64_t>(query_->number(columns_.size()));
    if (number != row_) throw QueryError(fmt::format("row {} follows", number + 1));
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      json += i == 0 ? '{' : ',';
      append_json_string(json, columns_[i].name);
      json += ':';
      if (query_->is_null(i))
        json += "null";
      else if (columns_[i].is_text)
        append_json_string(json, query_->text(i));
      else
        json += query_->text(i);
    }
    json += columns_.empty() ? "{}" : "}";
    ++row_;
    return true;
  }
  // What is wrong may be behind this row, because many rows are decoded at once: it searches for
  // the first row that cannot be read alone.
  void narrow(const std::string& reason) {
    query_.reset();
    if (window_ == 0)
      window_ = group_end(row_) - row_;
    else if (end_ - row_ > 1)
      window_ = (end_ - row_) / 2;
    else
      damaged(reason);
  }

  std::string name_;
  FileDescriptor descriptor_;
  std::string source_;
  Connection connection_;
  std::vector<Column> columns_;
  std::vector<std::uint64_t> group_ends_;
  std::uint64_t row_ = 0, rows_ = 0, end_ = 0;
  std::uint64_t jump_ = 0, jumped_to_ = ~std::uint64_t{0};
  std::uint64_t window_ = 0;  // rows of a query, once one has failed; 0: the rest of the file
  std::optional<Query> query_;
};

std::string parquet_problem() {
  try {
    library();
    return "";
  } catch (const Failure& error) {
    return error.what();
  }
}

ParquetReader::ParquetReader(const std::filesystem::path& path, std::vector<std::string> keys,
                             std::uint64_t first_row) {
  if (const std::string problem = parquet_problem(); !problem.empty())
    user_error(
        "{} is Parquet, which is read with DuckDB's library, but {}: npm install {}, and set {} to "
        "the libduckdb.so in node_modules/{}",
        path.string(), problem, kPackage, kDuckdbVariable, kPackage);
  file_ = std::make_unique<File>(path, keys, first_row);
}
ParquetReader::~ParquetReader() = default;
ParquetReader::ParquetReader(ParquetReader&&) noexcept = default;

bool ParquetReader::next(std::string& json) { return file_->next(json); }
SkippedInput ParquetReader::skip_damage(const DamagedInput& damage) {
  return file_->skip_damage(damage);
}
std::uint64_t ParquetReader::row() const { return file_->row(); }
std::uint64_t ParquetReader::rows() const { return file_->rows(); }

}  // namespace kintsugi
