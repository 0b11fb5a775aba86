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
type Vectorization string

// The kinds of vectorization. Without one, the server's setting holds.
const (
	// VectorizationRows steps rows one by one.
	VectorizationRows Vectorization = "rows"
	// VectorizationNative steps all rows of a worker together, by the environment's own code.
	VectorizationNative Vectorization = "native"
	// VectorizationEnvPool takes the environment from EnvPool.
	VectorizationEnvPool Vectorization = "envpool"
)

var vectorizations = map[Vectorization]pb.Vectorization{
	"":                   pb.Vectorization_VECTORIZATION_UNSPECIFIED,
	VectorizationRows:    pb.Vectorization_VECTORIZATION_ROWS,
	VectorizationNative:  pb.Vectorization_VECTORIZATION_NATIVE,
	VectorizationEnvPool: pb.Vectorization_VECTORIZATION_ENVPOOL,
}

// MultiAgentAPI is an interface of PettingZoo's environments with many agents.
type MultiAgentAPI string

// The interfaces of environments with many agents. Without one, the environment has one agent.
const (
	// MultiAgentParallel lets all agents act in each step.
	MultiAgentParallel MultiAgentAPI = "parallel"
	// MultiAgentAEC lets agents act one after the other; each step is the action of one agent.
	MultiAgentAEC MultiAgentAPI = "aec"
)

var multiAgentAPIs = map[MultiAgentAPI]pb.MultiAgentApi{
	"":                 pb.MultiAgentApi_MULTI_AGENT_API_UNSPECIFIED,
	MultiAgentParallel: pb.MultiAgentApi_MULTI_AGENT_API_PARALLEL,
	MultiAgentAEC:      pb.MultiAgentApi_MULTI_AGENT_API_AEC,
}

// Reproducibility is the unit of work that the same seed, indices and versions give again; empty for a class that only
// later versions know.
type Reproducibility string

// The classes of reproducibility.
const (
	// ReproducibilityEpisode is the class of environments whose every episode comes again, to the last bit.
	ReproducibilityEpisode Reproducibility = "episode"
	// ReproducibilityBlock is the class of rows that are stepped together: blocks of their episodes come again.
	ReproducibilityBlock Reproducibility = "block"
	// ReproducibilityWorker is the class of environments with a memory: at best, all that a worker does comes again.
	ReproducibilityWorker Reproducibility = "worker"
)

var reproducibilities = map[Reproducibility]pb.Reproducibility{
	ReproducibilityEpisode: pb.Reproducibility_REPRODUCIBILITY_EPISODE,
	ReproducibilityBlock:   pb.Reproducibility_REPRODUCIBILITY_BLOCK,
	ReproducibilityWorker:  pb.Reproducibility_REPRODUCIBILITY_WORKER,
}

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
	NumRows int
	// NumEpisodesPerRow is the number of episodes of each row in a block, where rows are stepped together; 0 for the
	// server's setting.
	NumEpisodesPerRow int
	// MultiAgent is the interface of an environment with many agents, whose calls are those of Sampler.MultiAgent; empty
	// for an environment with one agent.
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
		Id: s.ID, KwargsJson: kwargs, Task: task, ResetOptionsJson: resetOptions, GlobalState: s.GlobalState,
	}
	if environment.Vectorization, err = numberOf("Vectorization", vectorizations, s.Vectorization); err != nil {
		return nil, err
	}
	if environment.MultiAgent, err = numberOf("MultiAgent", multiAgentAPIs, s.MultiAgent); err != nil {
		return nil, err
	}
	if environment.RowCount, err = countOf("NumRows", s.NumRows); err != nil {
		return nil, err
	}
	if environment.EpisodesPerRow, err = countOf("NumEpisodesPerRow", s.NumEpisodesPerRow); err != nil {
		return nil, err
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

// decodeEnvSpec returns the environment that a message describes.
func decodeEnvSpec(message *pb.Environment) (EnvSpec, error) {
	spec := EnvSpec{
		ID:                message.GetId(),
		Vectorization:     nameOf(vectorizations, message.GetVectorization()),
		NumRows:           int(message.GetRowCount()),
		NumEpisodesPerRow: int(message.GetEpisodesPerRow()),
		MultiAgent:        nameOf(multiAgentAPIs, message.GetMultiAgent()),
		GlobalState:       message.GetGlobalState(),
	}
	if err := decodeJSON(message.GetKwargsJson(), &spec.Kwargs); err != nil {
		return spec, fmt.Errorf("kwargs_json: %w", err)
	}
	if err := decodeJSON(message.GetResetOptionsJson(), &spec.ResetOptions); err != nil {
		return spec, fmt.Errorf("reset_options_json: %w", err)
	}
	for i, each := range message.GetWrappers() {
		wrapper := Wrapper{Name: each.GetName()}
		if err := decodeJSON(each.GetKwargsJson(), &wrapper.Kwargs); err != nil {
			return spec, fmt.Errorf("wrappers[%d].kwargs_json: %w", i, err)
		}
		spec.Wrappers = append(spec.Wrappers, wrapper)
	}
	for _, transform := range message.GetTransforms() {
		spec.Transforms = append(spec.Transforms, decodeTransform(transform))
	}
	if task := message.GetTask(); task != nil {
		spec.Task = &Task{Method: task.GetMethod()}
		if err := decodeJSON(task.GetArgumentJson(), &spec.Task.Argument); err != nil {
			return spec, fmt.Errorf("task.argument_json: %w", err)
		}
	}
	return spec, nil
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
	ObservationSpace Space
	// ActionSpace is the space of their actions.
	ActionSpace Space
	// Reproducibility says which unit of work the same seed gives again.
	Reproducibility Reproducibility
	// NumRows is the number of rows that each worker steps at once for a call.
	NumRows int
	// NumEpisodesPerRow is the number of episodes of each row in a block; 0 for other classes than ReproducibilityBlock.
	NumEpisodesPerRow int
	// Agents are the names of the possible agents of an environment with many agents, whose spaces are Dict spaces that
	// have the agents' by these names; empty with one agent.
	Agents []string
}
