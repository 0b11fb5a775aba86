package main

import rollserve "github.com/rollserve/rollserve/client/go"

// array is an array of an operation, whose bytes are little-endian, as those of the machines that run the kit.
type array struct {
	DType  string
	Shape  []int
	Base64 []byte
}

// arrays are arrays by name.
type arrays map[string]array

func (a arrays) decoded() (map[string]rollserve.Array, error) {
	decoded := make(map[string]rollserve.Array, len(a))
	for name, each := range a {
		var err error
		decoded[name], err = rollserve.ArrayFromBytes(rollserve.DataType(each.DType), each.Shape, each.Base64)
		if err != nil {
			return nil, err
		}
	}
	return decoded, nil
}

// agentUpdate is an agent, or parameters for the present one, or updates of policies by name.
type agentUpdate struct {
	Agent      *agent
	Parameters arrays
	Change     *agentChange
	Policies   map[string]*agentUpdate
	PolicyMap  policyMap `json:"policy_map"`
}

// policyMap has rules, each with a name, a prefix or a position.
type policyMap []struct {
	Name     *string
	Prefix   *string
	Position *uint32
	Choices  []rollserve.PolicyChoice
}

func (m policyMap) rules() rollserve.PolicyMap {
	var rules rollserve.PolicyMap
	for _, rule := range m {
		switch {
		case rule.Name != nil:
			rules = append(rules, rollserve.ForAgent(*rule.Name, rule.Choices...))
		case rule.Prefix != nil:
			rules = append(rules, rollserve.ForPrefix(*rule.Prefix, rule.Choices...))
		default:
			rules = append(rules, rollserve.ForPosition(*rule.Position, rule.Choices...))
		}
	}
	return rules
}

func (u agentUpdate) exists() bool {
	return u.Agent != nil || u.Parameters != nil || u.Change != nil || u.Policies != nil
}

func (u agentUpdate) policies() (rollserve.AgentUpdate, error) {
	updates := map[string]rollserve.AgentUpdate{}
	for name, each := range u.Policies {
		var err error
		if updates[name], err = each.update(); err != nil {
			return nil, err
		}
	}
	return rollserve.Policies{Updates: updates, Map: u.PolicyMap.rules()}, nil
}

// agentChange is a change of the present agent's settings.
type agentChange struct {
	Kwargs     map[string]any
	Parameters arrays
}

// agent is an agent, with the fields of all kinds of agents.
type agent struct {
	Kind       string
	Action     arrays
	LayerSizes []int `json:"layer_sizes"` // which the shapes of the parameters say, too
	Activation string
	Head       string
	Parameters arrays
	Model      []byte
	Inputs     map[string]string
	Outputs    map[string]string
	Infos      []string
	Name       string
	Kwargs     map[string]any
	ActionMask rollserve.ActionMask `json:"action_mask"`

	NormalizationEpsilon float64 `json:"normalization_epsilon"`
	NormalizationClip    float64 `json:"normalization_clip"`
}

func (u agentUpdate) update() (rollserve.AgentUpdate, error) {
	if u.Policies != nil {
		return u.policies()
	}
	if u.Change != nil {
		parameters, err := u.Change.Parameters.decoded()
		return rollserve.AgentChange{Kwargs: u.Change.Kwargs, Parameters: parameters}, err
	}
	if u.Agent == nil {
		parameters, err := u.Parameters.decoded()
		return rollserve.Parameters(parameters), err
	}
	a := u.Agent
	parameters, err := a.Parameters.decoded()
	if err != nil {
		return nil, err
	}
	switch a.Kind {
	case "random":
		return rollserve.RandomAgent{ActionMask: a.ActionMask}, nil
	case "constant":
		action, err := a.Action.decoded()
		return rollserve.ConstantAgent{Action: action, ActionMask: a.ActionMask}, err
	case "mlp":
		return rollserve.MLPAgent{
			Parameters: parameters, Head: rollserve.Head(a.Head), Activation: rollserve.Activation(a.Activation),
			NormalizationEpsilon: a.NormalizationEpsilon, NormalizationClip: a.NormalizationClip,
			ActionMask: a.ActionMask,
		}, nil
	case "onnx":
		return rollserve.ONNXAgent{
			Model: a.Model, Head: rollserve.ONNXHead(a.Head), Inputs: a.Inputs, Outputs: a.Outputs, Infos: a.Infos,
			ActionMask: a.ActionMask,
		}, nil
	case "python":
		return rollserve.PythonAgent{
			Name: a.Name, Kwargs: a.Kwargs, Parameters: parameters, ActionMask: a.ActionMask,
		}, nil
	default:
		return nil, unsupported("agent " + a.Kind)
	}
}

// options are options of a call.
type options struct {
	agentUpdate
	Seed               *uint64 `json:",string"`
	FirstEpisodeIndex  *uint64 `json:"first_episode_index"`
	MaxEpisodeLength   int     `json:"max_episode_length"`
	PolicyVersion      *int64  `json:"policy_version"`
	MinPolicyVersion   *int64  `json:"min_policy_version"`
	EnvironmentVersion *int64  `json:"environment_version"`
	ExpectedNumWorkers int     `json:"expected_num_workers"`
	Deterministic      bool
	ReturnStates       bool `json:"return_states"`
	ReturnLastValues   bool `json:"return_last_values"`
	ReturnLastStates   bool `json:"return_last_states"`
	ReturnReturns      bool `json:"return_returns_before"` // which this client always asks for
	SkipFailedEpisodes bool `json:"skip_failed_episodes"`
	PlainFrames        bool `json:"plain_frames"`
	Prefetch           bool
	Temperatures       []float64
	NoiseScales        []float64 `json:"noise_scales"`
	Epsilons           []float64
	Deliver            []string
	Count              string
}

func (o *options) sampling() (*rollserve.SamplingOptions, error) {
	sampling := &rollserve.SamplingOptions{
		Seed:               o.Seed,
		FirstEpisodeIndex:  o.FirstEpisodeIndex,
		MaxEpisodeLength:   o.MaxEpisodeLength,
		PolicyVersion:      o.PolicyVersion,
		MinPolicyVersion:   o.MinPolicyVersion,
		EnvVersion:         o.EnvironmentVersion,
		ExpectedNumWorkers: o.ExpectedNumWorkers,
		Deterministic:      o.Deterministic,
		ReturnStates:       o.ReturnStates,
		ReturnLastValues:   o.ReturnLastValues,
		ReturnLastStates:   o.ReturnLastStates,
		SkipFailedEpisodes: o.SkipFailedEpisodes,
		PlainFrames:        o.PlainFrames,
		Prefetch:           o.Prefetch,
		Temperatures:       o.Temperatures,
		NoiseScales:        o.NoiseScales,
		Epsilons:           o.Epsilons,
		Deliver:            o.Deliver,
		CountAgentSteps:    o.Count == "agent_steps",
	}
	if !o.exists() {
		return sampling, nil
	}
	var err error
	sampling.Agent, err = o.agentUpdate.update()
	return sampling, err
}

// evaluation returns the options of an evaluation, which has some of those of a call that samples.
func (o *options) evaluation() (*rollserve.EvaluationOptions, error) {
	if o.exists() || o.ExpectedNumWorkers != 0 || o.ReturnStates || o.Prefetch {
		return nil, unsupported("an option that evaluations do not have")
	}
	evaluation := &rollserve.EvaluationOptions{
		Seed:               o.Seed,
		MaxEpisodeLength:   o.MaxEpisodeLength,
		PolicyVersion:      o.PolicyVersion,
		MinPolicyVersion:   o.MinPolicyVersion,
		EnvVersion:         o.EnvironmentVersion,
		Deterministic:      o.Deterministic,
		SkipFailedEpisodes: o.SkipFailedEpisodes,
		Temperatures:       o.Temperatures,
		NoiseScales:        o.NoiseScales,
		Epsilons:           o.Epsilons,
	}
	if o.FirstEpisodeIndex != nil {
		evaluation.FirstEpisodeIndex = *o.FirstEpisodeIndex
	}
	return evaluation, nil
}
