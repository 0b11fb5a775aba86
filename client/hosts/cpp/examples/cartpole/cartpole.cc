/// CartPole-v1 as a host, whose episodes equal gymnasium's to the last bit:
///
///     cartpole --listen HOST:PORT
///
/// The formulas, and the order of their operations, are those of gymnasium/envs/classic_control/cartpole.py.

#include <rollserve/host.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "numpy_random.h"

namespace {

namespace host = rollserve::host;

constexpr double pi = 3.14159265358979323846;
constexpr double gravity = 9.8;
constexpr double pole_mass = 0.1;
constexpr double total_mass = pole_mass + 1.0;
constexpr double length = 0.5;  // half the pole's
constexpr double pole_mass_length = pole_mass * length;
constexpr double force_magnitude = 10.0;
constexpr double seconds = 0.02;  // of a step
constexpr double max_angle = 12 * 2 * pi / 360;
constexpr double max_position = 2.4;
constexpr std::uint64_t max_steps = 500;

class CartPole : public host::Environment {
 public:
  rollserve::v1::Space observation_space() const override {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const auto position = static_cast<float>(max_position * 2), angle = static_cast<float>(max_angle * 2);
    return host::box<float>({-position, -infinity, -angle, -infinity}, {position, infinity, angle, infinity});
  }

  rollserve::v1::Space action_space() const override { return host::discrete(2); }

  std::uint64_t max_episode_steps() const override { return max_steps; }

  host::Outcome reset(std::uint64_t seed, const std::string& options_json) override {
    if (!options_json.empty()) throw std::invalid_argument("options: expected none, got " + options_json);
    NumpyRandom random(seed);
    for (double* number : {&x_, &x_dot_, &theta_, &theta_dot_}) *number = random.uniform(-0.05, 0.05);
    num_steps_ = 0;
    return {observation()};
  }

  host::Outcome step(const host::Value& action) override {
    const double force = host::values<std::int64_t>(action[0])[0] == 1 ? force_magnitude : -force_magnitude;
    const double cosine = std::cos(theta_), sine = std::sin(theta_);
    const double temp = (force + pole_mass_length * (theta_dot_ * theta_dot_) * sine) / total_mass;
    const double theta_acceleration =
        (gravity * sine - cosine * temp) / (length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / total_mass));
    const double x_acceleration = temp - pole_mass_length * theta_acceleration * cosine / total_mass;
    x_ = x_ + seconds * x_dot_;
    x_dot_ = x_dot_ + seconds * x_acceleration;
    theta_ = theta_ + seconds * theta_dot_;
    theta_dot_ = theta_dot_ + seconds * theta_acceleration;
    const bool terminated = x_ < -max_position || x_ > max_position || theta_ < -max_angle || theta_ > max_angle;
    return {observation(), 1.0, terminated, ++num_steps_ == max_steps};
  }

 private:
  host::Value observation() const {
    return {host::tensor<float>({static_cast<float>(x_), static_cast<float>(x_dot_), static_cast<float>(theta_),
                                 static_cast<float>(theta_dot_)})};
  }

  double x_ = 0, x_dot_ = 0, theta_ = 0, theta_dot_ = 0;
  std::uint64_t num_steps_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto make = [](const rollserve::rows::v1::Make& asked) {
    if (!asked.kwargs_json().empty()) throw std::invalid_argument("kwargs: expected none, got " + asked.kwargs_json());
    if (!asked.task_method().empty()) throw std::invalid_argument("task: expected none, got " + asked.task_method());
    return std::make_unique<CartPole>();
  };
  return host::serve({"CartPole-v1", {{"cartpole-cpp", "1"}}, make}, argc, argv);
}
