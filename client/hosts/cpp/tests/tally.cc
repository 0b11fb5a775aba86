/// A host of the tests, whose environment adds up its actions: nested spaces, infos of all kinds, and failures.

#include <rollserve/host.h>

#include <stdexcept>
#include <string>

namespace {

namespace host = rollserve::host;
namespace v1 = rollserve::v1;

v1::Space flags_space() {
  v1::Space space;
  space.mutable_multi_binary()->add_shape(2);
  return space;
}

class Tally : public host::Environment {
 public:
  explicit Tally(std::int64_t first) : first_(first) {}

  v1::Space observation_space() const override {
    v1::Space space;
    v1::NamedSpace& total = *space.mutable_dict()->add_spaces();
    total.set_name("total");
    *total.mutable_space() = host::box<double>({-1e9, -1e9}, {1e9, 1e9});
    v1::NamedSpace& last = *space.mutable_dict()->add_spaces();
    last.set_name("last");
    *last.mutable_space()->mutable_tuple()->add_spaces() = flags_space();
    return space;
  }

  v1::Space action_space() const override {
    v1::Space space;
    *space.mutable_tuple()->add_spaces() = host::discrete(3, -1);
    *space.mutable_tuple()->add_spaces() = flags_space();
    v1::MultiDiscreteSpace& levels = *space.mutable_tuple()->add_spaces()->mutable_multi_discrete();
    levels.set_data_type(v1::DATA_TYPE_UINT8);
    *levels.mutable_nvec() = host::tensor<std::uint8_t>({2, 5});
    *levels.mutable_start() = host::tensor<std::uint8_t>({0, 10});
    return space;
  }

  bool is_nondeterministic() const override { return true; }

  host::Outcome reset(std::uint64_t seed, const std::string& options_json) override {
    total_ = first_ + static_cast<std::int64_t>(seed);
    host::Outcome outcome{observation({0, 0})};
    outcome.infos["seed"] = host::scalar<std::uint64_t>(seed);
    outcome.infos["options"] = host::Json{options_json.empty() ? "null" : options_json};
    return outcome;
  }

  host::Outcome step(const host::Value& action) override {
    const std::int64_t change = host::values<std::int64_t>(action[0])[0];
    const std::int8_t* flags = host::values<std::int8_t>(action[1]);
    const std::uint8_t* levels = host::values<std::uint8_t>(action[2]);
    if (flags[0] == 1 && flags[1] == 1) throw 7;
    if (flags[0] == 1) throw std::runtime_error("the tally is lost");
    total_ += change;
    host::Outcome outcome{observation({flags[0], flags[1]}), static_cast<double>(change), total_ == 0, total_ > 100};
    outcome.infos["levels"] = host::tensor<std::int32_t>({levels[0], levels[1]});
    if (total_ % 2 == 0) outcome.infos["half"] = host::scalar<double>(static_cast<double>(total_) / 2);
    if (total_ % 2 != 0) outcome.infos["odd"] = host::Json{"{\"total\": " + std::to_string(total_) + "}"};
    if (flags[1] == 1) outcome.infos["mixed"] = host::tensor(std::vector<double>(levels[0] + std::size_t{1}));
    return outcome;
  }

 private:
  host::Value observation(const std::vector<std::int8_t>& flags) const {
    return {host::tensor<double>({static_cast<double>(total_), 0.5}), host::tensor(flags)};
  }

  std::int64_t first_, total_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto make = [](const rollserve::rows::v1::Make& asked) {
    const std::string &kwargs = asked.kwargs_json(), &task = asked.task_argument_json();
    if (!kwargs.empty()) throw std::invalid_argument("kwargs: expected none, got " + kwargs);
    if (task == "[]") throw std::invalid_argument("task: expected a number, got " + task);
    return std::make_unique<Tally>(task.empty() ? 0 : std::stoll(task));
  };
  return host::serve({"Tally", {}, make}, argc, argv);
}
