#include "policies.h"

#include <utility>

#include "arguments.h"

namespace conformance {

rollserve::PolicyMap policy_map_of(Json rules) {
  rollserve::PolicyMap map;
  for (Json& each : rules) {
    Fields rule(std::move(each));
    rollserve::PolicyRule& added = map.emplace_back();
    if (rule.has("name")) {
      added.agents = rollserve::AgentNamed{rule.take("name")};
    } else if (rule.has("prefix")) {
      added.agents = rollserve::AgentsWithPrefix{rule.take("prefix")};
    } else {
      added.agents = rollserve::AgentAt{rule.take("position")};
    }
    for (Json& fields : rule.take_object("choices")) {
      Fields choice(std::move(fields));
      rollserve::PolicyChoice& read = added.choices.emplace_back();
      choice.read("policy", read.policy);
      choice.read("version", read.version);
      choice.read("weight", read.weight);
      choice.finish();
    }
    rule.finish();
  }
  return map;
}

rollserve::Policies take_policies(Fields& from) {
  rollserve::Policies policies;
  Json updates = from.take("policies");
  for (auto& [name, update] : updates.items()) {
    Fields fields(std::move(update));
    policies.updates[name] = take_policy(fields);
    fields.finish();
  }
  if (from.has("policy_map")) policies.policy_map = policy_map_of(from.take("policy_map"));
  return policies;
}

}  // namespace conformance
