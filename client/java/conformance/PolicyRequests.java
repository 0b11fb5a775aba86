import io.github.rollserve.Policies;
import io.github.rollserve.PolicyChoice;
import io.github.rollserve.PolicyMap;
import io.github.rollserve.PolicyUpdate;
import java.util.Map;
import java.util.TreeMap;

/** Policies by name, and maps from agents to them, as operations have them. */
final class PolicyRequests {
    private PolicyRequests() {}

    static Policies policies(Fields operation) {
        Fields policies = operation.fields("policies");
        Map<String, PolicyUpdate> updates = new TreeMap<>();
        policies.values().keySet().forEach(name -> updates.put(name, Requests.policyUpdate(policies.fields(name))));
        return operation.set(new Policies(updates), "policy_map", (set, field) ->
            set.withPolicyMap(map(operation.elements(field))));
    }

    /** Returns the map of some rules. */
    static PolicyMap map(Iterable<?> rules) {
        PolicyMap map = new PolicyMap();
        for (Object each : rules) {
            Fields rule = Fields.of(each);
            PolicyChoice[] choices = rule.list("choices").stream()
                .map(choice -> new PolicyChoice(
                    choice.text("policy"), choice.integer("version"), choice.number("weight")))
                .toArray(PolicyChoice[]::new);
            if (rule.has("name")) {
                map = map.withAgent(rule.text("name"), choices);
            } else if (rule.has("prefix")) {
                map = map.withPrefix(rule.text("prefix"), choices);
            } else {
                map = map.withPosition((int) rule.integer("position"), choices);
            }
        }
        return map;
    }
}
