#include <cmath>
#include <numeric>

#include "failures.h"
#include "records.h"

namespace rollserve {

namespace internal {

namespace {

constexpr double confidence = 0.95;
constexpr double normal_bound = 1.959963984540054;  // of the normal distribution, at this confidence
constexpr std::size_t many_degrees = 1000;          // from which on an expansion agrees with the sum to 1e-12

/// Return the probability that the absolute value of t / sqrt(degrees) is at most the tangent of an angle: a finite sum
/// (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
double probability_of(double angle, std::size_t degrees) {
  const bool is_odd = degrees % 2 == 1;
  const double square = std::cos(angle) * std::cos(angle);
  double term = is_odd ? std::cos(angle) : 1;
  double sum = 0;
  for (std::size_t i = 1; i <= degrees / 2; ++i) {  // the first factors are 2/3, 4/5, … or 1/2, 3/4, …
    sum += term;
    const auto even = 2 * static_cast<double>(i);
    term *= square * (is_odd ? even / (even + 1) : (even - 1) / even);
  }
  const double total = std::sin(angle) * sum;
  return is_odd ? (angle + total) / std::acos(0.0) : total;
}

/// Return the bound that the absolute value of Student's t does not exceed with probability 0.95.
double students_t(std::size_t degrees) {
  const auto count = static_cast<double>(degrees);
  if (degrees > many_degrees) {  // an expansion in powers of 1 / degrees (Abramowitz and Stegun, 26.7.5)
    const double z = normal_bound;
    const double z2 = z * z;
    const double first = z * (z2 + 1) / 4;
    const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
    const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    return z + (first + (second + third / count) / count) / count;
  }
  double low = 0;
  double high = std::acos(0.0);
  for (int halving = 0; halving < 60; ++halving) {
    const double angle = (low + high) / 2;
    (probability_of(angle, degrees) < confidence ? low : high) = angle;
  }
  return std::sqrt(count) * std::tan(low);
}

/// Return the summary of at least one number.
Summary summary_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  Summary summary;
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() == 1) return summary;
  double squares = 0;
  for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
  summary.standard_deviation = std::sqrt(squares / (count - 1));
  const double margin = students_t(values.size() - 1) * *summary.standard_deviation / std::sqrt(count);
  summary.confidence_low = summary.mean - margin;
  summary.confidence_high = summary.mean + margin;
  return summary;
}

/// Return the summary of the episodes' means over selected agents; nothing if none is selected.
///
/// @param has whether the return at a position counts, which belongs to an agent.
template <class Has>
std::optional<Summary> summary_of(const AgentReturns& returns, const Has& has) {
  const std::size_t num_agents = returns.agents.size();
  std::vector<double> means;
  for (std::size_t first = 0; first < returns.returns.size(); first += num_agents) {
    double sum = 0;
    double count = 0;
    for (std::size_t agent = 0; agent < num_agents; ++agent) {
      if (!has(first + agent, agent)) continue;
      sum += returns.returns[first + agent];
      ++count;
    }
    if (count > 0) means.push_back(sum / count);
  }
  if (means.empty()) return std::nullopt;
  return summary_of(means);
}

}  // namespace

AgentReturns agent_returns_of(const v1::AgentReturns& message) {
  const int size = message.returns_size();
  if (message.agents_size() == 0 || size % message.agents_size() != 0 || message.policy_positions_size() != size) {
    throw Malformed("agent_returns",
                    "as many returns and policies, each for " + std::to_string(message.agents_size()) + " agents",
                    std::to_string(size) + " and " + std::to_string(message.policy_positions_size()));
  }
  for (const std::int32_t position : message.policy_positions()) {
    if (position < -1 || position >= message.policies_size()) {
      throw Malformed("agent_returns.policy_positions",
                      "positions among " + std::to_string(message.policies_size()) + " policies",
                      std::to_string(position));
    }
  }
  AgentReturns returns;
  returns.agents.assign(message.agents().begin(), message.agents().end());
  for (const v1::PolicyVersion& policy : message.policies()) {
    returns.policies.push_back({policy.policy(), policy.version()});
  }
  returns.returns.assign(message.returns().begin(), message.returns().end());
  returns.policy_positions.assign(message.policy_positions().begin(), message.policy_positions().end());
  return returns;
}

}  // namespace internal

std::string PolicyVersion::text() const { return policy + "@" + std::to_string(version); }

std::map<std::string, Summary> AgentReturns::by_agent() const {
  std::map<std::string, Summary> summaries;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    const auto has = [&](std::size_t position, std::size_t agent) {
      return agent == i && policy_positions[position] >= 0;
    };
    if (const auto summary = internal::summary_of(*this, has)) summaries.emplace(agents[i], *summary);
  }
  return summaries;
}

std::map<PolicyVersion, Summary> AgentReturns::by_policy() const {
  std::map<PolicyVersion, Summary> summaries;
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const auto has = [&](std::size_t position, std::size_t) {
      return policy_positions[position] == static_cast<std::int32_t>(i);
    };
    if (const auto summary = internal::summary_of(*this, has)) summaries.emplace(policies[i], *summary);
  }
  return summaries;
}

}  // namespace rollserve
