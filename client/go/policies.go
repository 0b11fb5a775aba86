package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Policies are policies by name, for an environment with many agents, or updates of some of them. They are an
// AgentUpdate of UpdateAgent and of calls that sample:
//
//	opponents := []rollserve.PolicyChoice{{Policy: "main", Weight: 0.8}, {Policy: "main", Version: -1, Weight: 0.2}}
//	sampler.UpdateAgent(ctx, rollserve.Policies{
//		Updates: map[string]rollserve.AgentUpdate{"main": agent},
//		Map:     rollserve.PolicyMap{
//			rollserve.ForAgent("player_0", rollserve.PolicyChoice{Policy: "main"}),
//			rollserve.ForAgent("player_1", opponents...),
//		},
//	}, nil)
type Policies struct {
	// Updates has a whole agent, Parameters or an AgentChange for each new or changed policy. The policies that are left
	// out stay as they are, as long as the map names them.
	Updates map[string]AgentUpdate
	// Map says which policy acts for which agent; nil for the present map. Before there is one, a policy acts for the
	// agent of its name and for agents whose names are its name, `_` and more, and a single policy for all.
	Map PolicyMap
}

// PolicyMap assigns policies to the agents of an environment. Where several rules match an agent, its name comes before
// its position, and that before the longest prefix. The random numbers of an episode belong to the positions of the
// rules: the same rules in another order draw other policies.
type PolicyMap []PolicyRule

// PolicyRule is a rule of a PolicyMap: some agents, and what may act for them. ForAgent, ForPrefix and ForPosition make
// rules.
type PolicyRule struct {
	choices []PolicyChoice
	assign  func(*pb.PolicyRule)
}

// PolicyChoice is a version of a policy that may act.
type PolicyChoice struct {
	// Policy is the policy's name.
	Policy string
	// Version is 0 for the policy's current version, -k for the k-th version before it or the oldest one that is held,
	// or a version's number.
	Version int64
	// Weight is the weight among the choices of the rule; 0 stands for 1. The chance of a choice is its part of the sum.
	Weight float64
	// Held tells that the choice never acts, and that the server holds it for evaluations. It has no weight then.
	Held bool
}

// ForAgent returns the rule for the agent of a name. One of several choices is drawn for each episode; so it is with
// the other two kinds of rules, for all agents of the rule together.
func ForAgent(name string, choices ...PolicyChoice) PolicyRule {
	return PolicyRule{choices, func(rule *pb.PolicyRule) { rule.Agents = &pb.PolicyRule_Name{Name: name} }}
}

// ForPrefix returns the rule for the agents whose names begin with a text; for all agents if it is empty.
func ForPrefix(prefix string, choices ...PolicyChoice) PolicyRule {
	return PolicyRule{choices, func(rule *pb.PolicyRule) { rule.Agents = &pb.PolicyRule_Prefix{Prefix: prefix} }}
}

// ForPosition returns the rule for the agent at a position among the environment's possible agents, from 0.
func ForPosition(position uint32, choices ...PolicyChoice) PolicyRule {
	return PolicyRule{choices, func(rule *pb.PolicyRule) { rule.Agents = &pb.PolicyRule_Position{Position: position} }}
}

func (p Policies) agentUpdate() (*pb.AgentUpdate, error) {
	updates := &pb.PolicyUpdates{Policies: make(map[string]*pb.AgentUpdate, len(p.Updates))}
	for name, update := range p.Updates {
		if _, nested := update.(Policies); nested || update == nil {
			field := fmt.Sprintf("Updates[%q]", name)
			return nil, invalid(field, "an agent, Parameters or an AgentChange", fmt.Sprintf("%T", update))
		}
		message, err := update.agentUpdate()
		if err != nil {
			return nil, err
		}
		updates.Policies[name] = message
	}
	if p.Map != nil {
		updates.PolicyMap = p.Map.message()
	}
	return &pb.AgentUpdate{Update: &pb.AgentUpdate_Policies{Policies: updates}}, nil
}

func (m PolicyMap) message() *pb.PolicyMap {
	message := &pb.PolicyMap{}
	for _, each := range m {
		rule := &pb.PolicyRule{}
		if each.assign != nil {
			each.assign(rule)
		}
		for _, choice := range each.choices {
			weight := choice.Weight
			if choice.Held {
				weight = 0
			} else if weight == 0 {
				weight = 1
			}
			of := &pb.PolicyChoice{Policy: choice.Policy, Version: choice.Version, Weight: weight}
			rule.Choices = append(rule.Choices, of)
		}
		message.Rules = append(message.Rules, rule)
	}
	return message
}
