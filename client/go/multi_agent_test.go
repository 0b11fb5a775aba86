package rollserve_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// life has the agent's position and the environment steps of a segment.
type life struct {
	segment [4]int // episode, first step, length, and whether the life ends
	agent   int
	steps   []uint32
}

func policy(name string, version int64, lives ...life) *pb.PolicyBatch {
	message := &pb.PolicyBatch{Policy: name}
	var list [][4]int
	for _, each := range lives {
		list = append(list, each.segment)
		message.AgentPositions = append(message.AgentPositions, uint32(each.agent))
		message.EnvironmentSteps = append(message.EnvironmentSteps, each.steps...)
	}
	message.Batch = segments(list...)
	for i := range lives {
		message.Batch.PolicyVersions[i] = version
	}
	return message
}

// crowd returns a message of parts of episodes: each has episode, first step, length, whether it ends, and the number
// of the agents' steps. The global state of a step is its number.
func crowd(parts [][5]int, policies ...*pb.PolicyBatch) *pb.ObtainSamplesResponse {
	message := &pb.MultiAgentBatch{Agents: []string{"red", "blue"}, Policies: policies}
	var states, last []float64
	for _, part := range parts {
		message.EpisodeIndices = append(message.EpisodeIndices, uint64(part[0]))
		message.FirstSteps = append(message.FirstSteps, uint64(part[1]))
		message.Lengths = append(message.Lengths, uint32(part[2]))
		message.Terminated = append(message.Terminated, part[3] == 1)
		message.Truncated = append(message.Truncated, false)
		message.AgentStepCounts = append(message.AgentStepCounts, uint32(part[4]))
		for step := part[1]; step < part[1]+part[2]; step++ {
			states = append(states, float64(step))
		}
		last = append(last, float64(part[1]+part[2]))
	}
	message.GlobalStates = tensor(float64s, states, len(states), 1)
	message.LastGlobalStates = tensor(float64s, last, len(last), 1)
	return &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_MultiAgentBatch{MultiAgentBatch: message}}
}

// firstPart and secondPart are an episode of five environment steps, in which red acts in all and blue in the second,
// the third and the fifth, which begins another life.
func firstPart() *pb.ObtainSamplesResponse {
	return crowd([][5]int{{4, 0, 3, 0, 5}},
		policy("a", 1, life{[4]int{4, 0, 3, 0}, 0, []uint32{0, 1, 2}}),
		policy("b", 2, life{[4]int{4, 0, 2, 1}, 1, []uint32{1, 2}}))
}

func secondPart() *pb.ObtainSamplesResponse {
	return crowd([][5]int{{4, 3, 2, 1, 3}},
		policy("a", 1, life{[4]int{4, 3, 2, 1}, 0, []uint32{3, 4}}),
		policy("b", 2, life{[4]int{4, 0, 1, 1}, 1, []uint32{4}}))
}

func many(server *script, t *testing.T, options *rollserve.SamplingOptions) (*rollserve.MultiAgentBatch, error) {
	t.Helper()
	return server.connect(t, rollserve.Config{}).MultiAgent().ObtainSamples(context.Background(), 5, options)
}

func TestEpisodesOfManyAgentsAreJoinedOverMessages(t *testing.T) {
	second := secondPart()
	second.GetMultiAgentBatch().Policies[1].RewardsBefore = []float64{0.5}
	server := &script{calls: []scripted{{
		responses: []*pb.ObtainSamplesResponse{beginning(), firstPart(), second, account(1, 5)},
	}}}
	batch, err := many(server, t, nil)
	fatal(t, err)
	same(t, "agents", batch.Agents, []string{"red", "blue"})
	same(t, "lengths", batch.Lengths, []int{5})
	same(t, "ended", batch.Ended(0), true)
	same(t, "steps", []int{batch.NumSteps(), batch.NumAgentSteps()}, []int{5, 8})
	same(t, "states", values[float64](t, batch.GlobalStates), []float64{0, 1, 2, 3, 4})
	same(t, "last states", values[float64](t, batch.LastGlobalStates), []float64{5})
	byPolicy, err := batch.ByPolicy()
	fatal(t, err)
	same(t, "red", byPolicy["a"].Lengths, []int{5})
	same(t, "lives of blue", byPolicy["b"].Lengths, []int{2, 1})
	same(t, "steps of blue", batch.Policies[1].EnvSteps, []uint64{1, 2, 4})
	same(t, "rewards before", batch.Policies[1].RewardsBefore, []float64{0, 0.5})
	same(t, "returns of lives", byPolicy["b"].EpisodeReturns(), []float64{1, 0.5})
	joint := batch.Joint()
	same(t, "acted", joint["blue"].Acted, []bool{false, true, true, false, true})
	same(t, "terminated", joint["blue"].Terminated, []bool{false, false, true, false, true})
	same(t, "observations", values[float32](t, joint["blue"].Observations[""]), []float32{0, 400, 401, 0, 400})
	same(t, "versions", joint["blue"].PolicyVersions, []int64{0, 2, 2, 0, 2})
	same(t, "rewards", joint["red"].Rewards, []float64{0, 1, 2, 3, 4})
}

func TestBatchesByAgentHaveWhatAllPoliciesDid(t *testing.T) {
	a := policy("a", 1, life{[4]int{5, 0, 2, 1}, 1, []uint32{0, 1}}, life{[4]int{4, 0, 1, 1}, 0, []uint32{0}})
	a.Batch.AgentInfos = column("value", tensor(float32s, []float32{1, 2, 3}, 3))
	b := policy("b", 1, life{[4]int{4, 0, 1, 1}, 1, []uint32{0}})
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		beginning(), crowd([][5]int{{4, 0, 1, 1, 2}, {5, 0, 2, 1, 2}}, a, b), account(2, 3),
	}}}}
	batch, err := many(server, t, nil)
	fatal(t, err)
	byAgent, err := batch.ByAgent()
	fatal(t, err)
	blue := byAgent["blue"]
	same(t, "episodes of blue", blue.EpisodeIndices, []uint64{4, 5})
	same(t, "values of blue", values[float32](t, blue.AgentInfos["value"]), []float32{0, 1, 2})
	same(t, "gaps", blue.AgentInfos.Mask("value"), []bool{false, true, true})
	same(t, "values of red", values[float32](t, byAgent["red"].AgentInfos["value"]), []float32{3})
}

func TestVersionsOfAPolicyStayApart(t *testing.T) {
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		beginning(), crowd([][5]int{{4, 2, 2, 1, 2}},
			policy("a", 2, life{[4]int{4, 3, 1, 1}, 0, []uint32{3}}),
			policy("a", 1, life{[4]int{4, 2, 1, 0}, 0, []uint32{1}})), account(1, 2),
	}}}}
	batch, err := many(server, t, nil)
	fatal(t, err)
	same(t, "policies", len(batch.Policies), 1)
	same(t, "versions", batch.Policies[0].Batch.PolicyVersions, []int64{2, 1})
	same(t, "row of an earlier fragment", batch.Joint()["red"].Acted, []bool{false, true})
}

func TestBrokenStreamOfManyAgentsContinuesWithinAMessage(t *testing.T) {
	again := crowd([][5]int{{4, 0, 4, 0, 6}},
		policy("a", 1, life{[4]int{4, 0, 4, 0}, 0, []uint32{0, 1, 2, 3}}),
		policy("b", 2, life{[4]int{4, 0, 2, 1}, 1, []uint32{1, 2}}))
	rest := crowd([][5]int{{4, 4, 1, 1, 2}},
		policy("a", 1, life{[4]int{4, 4, 1, 1}, 0, []uint32{4}}),
		policy("b", 2, life{[4]int{4, 0, 1, 1}, 1, []uint32{4}}))
	whole := crowd([][5]int{{4, 0, 5, 1, 8}},
		policy("a", 1, life{[4]int{4, 0, 5, 1}, 0, []uint32{0, 1, 2, 3, 4}}),
		policy("b", 2, life{[4]int{4, 0, 2, 1}, 1, []uint32{1, 2}}, life{[4]int{4, 0, 1, 1}, 1, []uint32{4}}))
	calls := func(rest ...*pb.ObtainSamplesResponse) *script {
		return &script{calls: []scripted{
			{responses: []*pb.ObtainSamplesResponse{beginning(), firstPart()}, err: broken},
			{responses: append([]*pb.ObtainSamplesResponse{beginning()}, rest...)},
		}}
	}
	for _, responses := range [][]*pb.ObtainSamplesResponse{
		{firstPart(), secondPart()}, {again, rest}, {whole},
	} {
		server := calls(append(responses, account(1, 5))...)
		batch, err := many(server, t, &rollserve.SamplingOptions{Deliver: []string{"a", "b"}, CountAgentSteps: true})
		fatal(t, err)
		same(t, "red", batch.Policies[0].EnvSteps, []uint64{0, 1, 2, 3, 4})
		same(t, "blue", batch.Policies[1].EnvSteps, []uint64{1, 2, 4})
		same(t, "lives of blue", batch.Policies[1].Batch.Lengths, []int{2, 1})
		same(t, "states", values[float64](t, batch.GlobalStates), []float64{0, 1, 2, 3, 4})
		same(t, "agents' steps", batch.AgentStepCounts, []uint64{8})
		same(t, "resumptions", batch.Account.NumResumptions, 1)
		request := server.requests[1].(*pb.ObtainSamplesRequest)
		same(t, "first episode", request.Options.GetFirstEpisodeIndex(), uint64(4))
		same(t, "steps", request.StepCount, int64(5))
		same(t, "delivered", request.Options.DeliverPolicies, []string{"a", "b"})
	}
}

func TestBrokenStreamAsksForTheAgentsStepsThatAreLeft(t *testing.T) {
	next := crowd([][5]int{{5, 0, 1, 1, 2}}, policy("a", 1, life{[4]int{5, 0, 1, 1}, 0, []uint32{0}}))
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{beginning(), firstPart(), secondPart()}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(), next}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(), next, account(1, 1)}},
	}}
	sampler := server.connect(t, rollserve.Config{}).MultiAgent()
	options := &rollserve.SamplingOptions{CountAgentSteps: true}
	batch, err := sampler.ObtainSamples(context.Background(), 10, options)
	fatal(t, err)
	same(t, "agents' steps", batch.AgentStepCounts, []uint64{8, 2})
	same(t, "account", []int64{batch.Account.NumEpisodes, batch.Account.NumSteps}, []int64{2, 6})
	for call, want := range map[int]int64{1: 2, 2: 2} { // the account alone is missing: the last episode once more
		same(t, "steps", server.requests[call].(*pb.ObtainSamplesRequest).StepCount, want)
		same(t, "episode", server.requests[call].(*pb.ObtainSamplesRequest).Options.GetFirstEpisodeIndex(), uint64(5))
	}
}

func TestCallsOfTheOtherKindOfEnvironmentAreRefused(t *testing.T) {
	server := &script{calls: []scripted{oneStep(), {responses: []*pb.ObtainSamplesResponse{beginning(), firstPart()}}}}
	sampler := server.connect(t, rollserve.Config{})
	_, ofMany := sampler.MultiAgent().ObtainSamples(context.Background(), 1, nil)
	_, ofOne := sampler.ObtainSamples(context.Background(), 1, nil)
	for _, err := range []error{ofMany, ofOne} {
		isInvalid(t, err, "env")
	}
}

func TestMalformedBatchesOfManyAgentsAreServerErrors(t *testing.T) {
	for want, change := range map[string]func(*pb.MultiAgentBatch){
		`policies["b"].agent_positions: expected positions among 2 agents`: func(m *pb.MultiAgentBatch) {
			m.Policies[1].AgentPositions[0] = 2
		},
		`policies["a"].environment_steps: expected 3 values`: func(m *pb.MultiAgentBatch) {
			m.Policies[0].EnvironmentSteps = m.Policies[0].EnvironmentSteps[1:]
		},
		`policies["a"].rewards_before: expected 1 values, or none`: func(m *pb.MultiAgentBatch) {
			m.Policies[0].RewardsBefore = []float64{1, 2}
		},
		"first_steps: expected 1 values":             func(m *pb.MultiAgentBatch) { m.FirstSteps = nil },
		"last_global_states: expected states beside": func(m *pb.MultiAgentBatch) { m.LastGlobalStates = nil },
		"global_states: expected 3 states": func(m *pb.MultiAgentBatch) {
			m.GlobalStates = tensor(float64s, []float64{1}, 1, 1)
		},
	} {
		message := firstPart()
		change(message.GetMultiAgentBatch())
		server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{beginning(), message}}}}
		_, err := many(server, t, nil)
		isServerError(t, err, want)
	}
}

func TestPoliciesAreUpdatedByName(t *testing.T) {
	server := &script{}
	sampler := server.connect(t, rollserve.Config{})
	choices := []rollserve.PolicyChoice{{Policy: "a", Version: -1, Weight: 0.25}, {Policy: "b"}, {Policy: "c", Held: true}}
	_, err := sampler.UpdateAgent(context.Background(), rollserve.Policies{
		Updates: map[string]rollserve.AgentUpdate{
			"a": rollserve.RandomAgent{}, "b": rollserve.Parameters{"w": rollserve.Scalar(1.5)},
		},
		Map: rollserve.PolicyMap{
			rollserve.ForAgent("red", choices...), rollserve.ForPrefix("bl", choices[1]),
			rollserve.ForPosition(1, choices[0]),
		},
	}, nil)
	fatal(t, err)
	update := server.requests[0].(*pb.UpdateAgentRequest).GetAllWorkers().GetPolicies()
	same(t, "agent", update.Policies["a"].GetAgent().GetRandom() != nil, true)
	same(t, "parameters", update.Policies["b"].GetParameters().GetTensors()[0].GetName(), "w")
	want := &pb.PolicyMap{Rules: []*pb.PolicyRule{
		{Agents: &pb.PolicyRule_Name{Name: "red"}, Choices: []*pb.PolicyChoice{
			{Policy: "a", Version: -1, Weight: 0.25}, {Policy: "b", Weight: 1}, {Policy: "c"},
		}},
		{Agents: &pb.PolicyRule_Prefix{Prefix: "bl"}, Choices: []*pb.PolicyChoice{{Policy: "b", Weight: 1}}},
		{
			Agents:  &pb.PolicyRule_Position{Position: 1},
			Choices: []*pb.PolicyChoice{{Policy: "a", Version: -1, Weight: 0.25}},
		},
	}}
	same(t, "map", proto.Equal(update.PolicyMap, want), true)
	for _, update := range []rollserve.AgentUpdate{nil, rollserve.Policies{}} {
		nested := rollserve.Policies{Updates: map[string]rollserve.AgentUpdate{"a": update}}
		_, err := sampler.UpdateAgent(context.Background(), nested, nil)
		isInvalid(t, err, `Updates["a"]`)
	}
}
