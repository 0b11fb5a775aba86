package rollserve

import (
	"encoding/json"
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// EnvUpdate is an EnvSpec, an EnvChange, or RowEnvUpdates that differ between the rows of a worker.
type EnvUpdate interface {
	envUpdate() (*pb.EnvironmentUpdate, error)
}

// Vectorization says how the rows of an environment are stepped.
type Vectorization = pb.Vectorization

// The kinds of vectorization. Without one, the server's setting holds.
const (
	// VectorizationRows steps rows one by one.
	VectorizationRows = pb.Vectorization_VECTORIZATION_ROWS
	// VectorizationNative steps all rows of a worker together, by the environment's own code.
	VectorizationNative = pb.Vectorization_VECTORIZATION_NATIVE
	// VectorizationEnvPool takes the environment from EnvPool.
	VectorizationEnvPool = pb.Vectorization_VECTORIZATION_ENVPOOL
)

// MultiAgentAPI is an interface of PettingZoo's environments with many agents.
type MultiAgentAPI = pb.MultiAgentApi

// The interfaces of environments with many agents. Without one, the environment has one agent.
const (
	// MultiAgentParallel lets all agents act in each step.
	MultiAgentParallel = pb.MultiAgentApi_MULTI_AGENT_API_PARALLEL
	// MultiAgentAEC lets agents act one after the other; each step is the action of one agent.
	MultiAgentAEC = pb.MultiAgentApi_MULTI_AGENT_API_AEC
)

// EnvSpec specifies an environment. encoding/json has to be able to write its arguments.
type EnvSpec struct {
	// ID is registered with gymnasium, such as CartPole-v1; or `module:Id`, `module:Class` or `profile:NAME`.
	ID string
	// Kwargs are the keyword arguments of gymnasium.make or of the class.
	Kwargs map[string]any
	// Wrappers are around the environment, innermost first.
	Wrappers []Wrapper
	// Transforms change rewards, actions and observations, innermost first.
	Transforms []Transform
	// Task is set after the environment is made; nil leaves the environment's own.
	Task *Task
	// ResetOptions are the `options` of each reset.
	ResetOptions map[string]any
	// Vectorization says how rows are stepped.
	Vectorization Vectorization
	// NumRows is the number of rows that each worker steps at once for a call; 0 for the server's setting.
	NumRows uint32
	// NumEpisodesPerRow is the number of episodes of each row in a block, where rows are stepped together; 0 for the
	// server's setting.
	NumEpisodesPerRow uint32
	// MultiAgent is the interface of an environment with many agents, whose calls are those of Sampler.MultiAgent; 0 for
	// an environment with one agent.
	MultiAgent MultiAgentAPI
	// GlobalState says whether batches have the environment's global state. Only for environments with many agents.
	GlobalState bool
}

// Wrapper is a class of gymnasium.wrappers with its keyword arguments, except for the environment.
type Wrapper struct {
	Name   string
	Kwargs map[string]any
}

// Task is a task that an environment can be set to without being made again, by a method with one argument.
type Task struct {
	Method   string
	Argument any
}

// EnvChange changes the present environment. What is left out stays as it is; episodes start over in any case.
type EnvChange struct {
	// Kwargs are added to the present ones, or replace them by name.
	Kwargs map[string]any
	// Task is set; nil leaves the present one.
	Task *Task
	// ResetOptions are the `options` of each reset from now on; nil leaves the present ones.
	ResetOptions map[string]any
}

// RowEnvUpdates has an EnvSpec or an EnvChange for each row of a worker; nil leaves the row's environment as it is.
type RowEnvUpdates []EnvUpdate

func (s EnvSpec) envUpdate() (*pb.EnvironmentUpdate, error) {
	environment, err := s.message()
	if err != nil {
		return nil, err
	}
	return &pb.EnvironmentUpdate{Update: &pb.EnvironmentUpdate_Environment{Environment: environment}}, nil
}

func (s EnvSpec) message() (*pb.Environment, error) {
	kwargs, err := encodeJSON("Kwargs", s.Kwargs)
	if err != nil {
		return nil, err
	}
	resetOptions, err := encodeJSON("ResetOptions", s.ResetOptions)
	if err != nil {
		return nil, err
	}
	task, err := s.Task.message()
	if err != nil {
		return nil, err
	}
	environment := &pb.Environment{
		Id: s.ID, KwargsJson: kwargs, Task: task, ResetOptionsJson: resetOptions, Vectorization: s.Vectorization,
		RowCount: s.NumRows, EpisodesPerRow: s.NumEpisodesPerRow, MultiAgent: s.MultiAgent, GlobalState: s.GlobalState,
	}
	for i, transform := range s.Transforms {
		if transform == nil {
			return nil, invalid(fmt.Sprintf("Transforms[%d]", i), "a transform", "nil")
		}
		environment.Transforms = append(environment.Transforms, transform.transform())
	}
	for i, wrapper := range s.Wrappers {
		kwargs, err := encodeJSON(fmt.Sprintf("Wrappers[%d].Kwargs", i), wrapper.Kwargs)
		if err != nil {
			return nil, err
		}
		environment.Wrappers = append(environment.Wrappers, &pb.Wrapper{Name: wrapper.Name, KwargsJson: kwargs})
	}
	return environment, nil
}

func (c EnvChange) envUpdate() (*pb.EnvironmentUpdate, error) {
	kwargs, err := encodeJSON("Kwargs", c.Kwargs)
	if err != nil {
		return nil, err
	}
	task, err := c.Task.message()
	if err != nil {
		return nil, err
	}
	change := &pb.EnvironmentChange{KwargsJson: kwargs, Task: task}
	if c.ResetOptions != nil {
		options, err := encodeJSON("ResetOptions", c.ResetOptions)
		if err != nil {
			return nil, err
		}
		change.ResetOptionsJson = &options
	}
	return &pb.EnvironmentUpdate{Update: &pb.EnvironmentUpdate_Change{Change: change}}, nil
}

func (u RowEnvUpdates) envUpdate() (*pb.EnvironmentUpdate, error) {
	rows := &pb.EnvironmentUpdatePerRow{}
	for i, update := range u {
		message := &pb.EnvironmentUpdate{}
		if update != nil {
			var err error
			if message, err = update.envUpdate(); err != nil {
				return nil, fmt.Errorf("row %d: %w", i, err)
			}
		}
		rows.Updates = append(rows.Updates, message)
	}
	return &pb.EnvironmentUpdate{Update: &pb.EnvironmentUpdate_PerRow{PerRow: rows}}, nil
}

func (t *Task) message() (*pb.Task, error) {
	if t == nil {
		return nil, nil
	}
	argument, err := json.Marshal(t.Argument)
	if err != nil {
		return nil, invalid("Task.Argument", "a value that JSON can hold", err)
	}
	return &pb.Task{Method: t.Method, ArgumentJson: string(argument)}, nil
}

// keepsAny reports whether an update keeps or changes any of the present environments.
func keepsAny(update *pb.EnvironmentUpdate) bool {
	if rows := update.GetPerRow(); rows != nil {
		for _, row := range rows.GetUpdates() {
			if row.GetEnvironment() == nil {
				return true
			}
		}
		return false
	}
	return update.GetEnvironment() == nil
}

// EnvUpdated is the result of an update of the environments.
type EnvUpdated struct {
	// EnvVersion is the version of the new environments.
	EnvVersion int64
	// ObservationSpace is the space of their observations.
	ObservationSpace *Space
	// ActionSpace is the space of their actions.
	ActionSpace *Space
	// Reproducibility says which unit of work the same seed gives again.
	Reproducibility pb.Reproducibility
	// NumRows is the number of rows that each worker steps at once for a call.
	NumRows uint32
	// NumEpisodesPerRow is the number of episodes of each row in a block; 0 unless the class is BLOCK.
	NumEpisodesPerRow uint32
	// Agents are the names of the possible agents of an environment with many agents, whose spaces are Dict spaces that
	// have the agents' by these names; empty with one agent.
	Agents []string
}

// Space is a set of observations or actions, as gymnasium defines it, in the form of the wire. ArrayOf reads the bounds
// of a Box.
type Space = pb.Space

// FlatSize returns the size of a value after gymnasium.spaces.flatten, which is the input of an MLP.
func FlatSize(space *Space) (int, error) {
	var subspaces []*Space
	switch kind := space.GetKind().(type) {
	case *pb.Space_Box:
		return sizeOf(kind.Box.GetShape()), nil
	case *pb.Space_MultiBinary:
		return sizeOf(kind.MultiBinary.GetShape()), nil
	case *pb.Space_Discrete:
		return int(kind.Discrete.GetN()), nil
	case *pb.Space_MultiDiscrete:
		counts, err := ArrayOf(kind.MultiDiscrete.GetNvec())
		if err != nil {
			return 0, err
		}
		size := 0
		for _, count := range numbers[int64](counts) {
			size += int(count)
		}
		return size, nil
	case *pb.Space_Dict:
		for _, named := range kind.Dict.GetSpaces() {
			subspaces = append(subspaces, named.GetSpace())
		}
	case *pb.Space_Tuple:
		subspaces = kind.Tuple.GetSpaces()
	default:
		return 0, invalid("space", "a kind of space that this version knows", "another one")
	}
	size := 0
	for _, subspace := range subspaces {
		part, err := FlatSize(subspace)
		if err != nil {
			return 0, err
		}
		size += part
	}
	return size, nil
}

func sizeOf(shape []int64) int {
	size := 1
	for _, length := range shape {
		size *= int(length)
	}
	return size
}
