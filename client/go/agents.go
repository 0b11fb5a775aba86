package rollserve

import (
	"encoding/json"
	"fmt"
	"sort"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// AgentUpdate is a whole agent, which replaces any present one, or Parameters or an AgentChange for the present agent.
type AgentUpdate interface {
	agentUpdate() (*pb.AgentUpdate, error)
}

// Parameters are parameters of an agent by name. As an update, they go into the present agent: all of an MLP, any of an
// ONNX or Python agent, whose other parameters stay as they are.
type Parameters map[string]Array

// RandomAgent draws actions uniformly from the action space.
type RandomAgent struct {
	// ActionMask is the source of the action mask.
	ActionMask ActionMask
}

// ActionMask is the source of an agent's action mask, which says for each action whether it is legal at a step: one of
// the two, or neither for none. Batches have it as the info `action_mask`, of Dict and Tuple actions `action_mask/NAME`
// for each leaf.
type ActionMask struct {
	// Info is the name of an info that the environment returns with each observation.
	Info string
	// Observation is the name of a leaf of the observation space, or of a Dict or Tuple of leaves, which are then no part
	// of an MLP's input.
	Observation string
}

func (m ActionMask) message() (*pb.ActionMask, error) {
	switch {
	case m.Info != "" && m.Observation != "":
		return nil, invalid("ActionMask", "an info or an observation", "both")
	case m.Info != "":
		return &pb.ActionMask{Source: &pb.ActionMask_Info{Info: m.Info}}, nil
	case m.Observation != "":
		return &pb.ActionMask{Source: &pb.ActionMask_Observation{Observation: m.Observation}}, nil
	default:
		return nil, nil
	}
}

// AgentChange changes settings of the present agent, a PythonAgent, which keeps its code and other parameters.
type AgentChange struct {
	// Kwargs are added to the present ones of the agent's factory, or replace them.
	Kwargs map[string]any
	// Parameters are added to the present ones, or replace them.
	Parameters Parameters
}

func (c AgentChange) agentUpdate() (*pb.AgentUpdate, error) {
	kwargs, err := encodeJSON("Kwargs", c.Kwargs)
	if err != nil {
		return nil, err
	}
	change := &pb.AgentChange{KwargsJson: kwargs}
	if len(c.Parameters) > 0 {
		if change.Parameters, err = c.Parameters.message(); err != nil {
			return nil, err
		}
	}
	return &pb.AgentUpdate{Update: &pb.AgentUpdate_Change{Change: change}}, nil
}

// ConstantAgent always takes the same action.
type ConstantAgent struct {
	// Action has one array for each leaf of the action space; the leaf of a plain space has the empty name.
	Action Columns
	// ActionMask is the source of the action mask; a masked action is an error.
	ActionMask ActionMask
}

// ONNXHead is the meaning of the outputs of an ONNX model.
type ONNXHead string

// The heads of ONNX models.
const (
	// ONNXCategorical takes the output `logits`.
	ONNXCategorical ONNXHead = "categorical"
	// ONNXDiagonalGaussian takes the outputs `mean` and `log_std`.
	ONNXDiagonalGaussian ONNXHead = "diagonal_gaussian"
	// ONNXSquashedGaussian takes the outputs `mean` and `log_std`; samples are mapped into the bounds by tanh.
	ONNXSquashedGaussian ONNXHead = "squashed_gaussian"
	// ONNXActions takes the output `action`, or `action/NAME` for each leaf, and optionally `log_prob`.
	ONNXActions ONNXHead = "actions"
)

// ONNXAgent is a model in the ONNX format. The comment on OnnxAgent in the protos describes its inputs and outputs.
type ONNXAgent struct {
	// Model is the serialized ModelProto.
	Model []byte
	// Head is the meaning of the outputs.
	Head ONNXHead
	// Inputs has the names of inputs by role, where they differ from the role.
	Inputs map[string]string
	// Outputs has the names of outputs by role, where they differ from the role.
	Outputs map[string]string
	// Infos has the names of further outputs, which become agent infos.
	Infos []string
	// ActionMask is the source of the action mask.
	ActionMask ActionMask
}

// PythonAgent is an agent in Python that is installed with the server.
type PythonAgent struct {
	// Name is the name of an entry point of the group `rollserve.agents`.
	Name string
	// Kwargs are the keyword arguments of its factory; encoding/json has to be able to write them.
	Kwargs map[string]any
	// Parameters are its parameters.
	Parameters Parameters
	// ActionMask is the source of the action mask, which the policy gets if it asks for it.
	ActionMask ActionMask
}

func (p Parameters) agentUpdate() (*pb.AgentUpdate, error) {
	parameters, err := p.message()
	if err != nil {
		return nil, err
	}
	return &pb.AgentUpdate{Update: &pb.AgentUpdate_Parameters{Parameters: parameters}}, nil
}

func (a RandomAgent) agentUpdate() (*pb.AgentUpdate, error) {
	mask, err := a.ActionMask.message()
	if err != nil {
		return nil, err
	}
	return wholeAgent(&pb.Agent{Kind: &pb.Agent_Random{Random: &pb.RandomAgent{ActionMask: mask}}}), nil
}

func (a ConstantAgent) agentUpdate() (*pb.AgentUpdate, error) {
	tensors, err := encodeNamed("action", a.Action)
	if err != nil {
		return nil, err
	}
	constant := &pb.ConstantAgent{Action: tensors}
	if constant.ActionMask, err = a.ActionMask.message(); err != nil {
		return nil, err
	}
	return wholeAgent(&pb.Agent{Kind: &pb.Agent_Constant{Constant: constant}}), nil
}

func (a ONNXAgent) agentUpdate() (*pb.AgentUpdate, error) {
	mask, err := a.ActionMask.message()
	if err != nil {
		return nil, err
	}
	onnx := &pb.OnnxAgent{Model: a.Model, Inputs: a.Inputs, Outputs: a.Outputs, Infos: a.Infos, ActionMask: mask}
	switch a.Head {
	case ONNXCategorical:
		onnx.Head = &pb.OnnxAgent_Categorical{Categorical: &pb.CategoricalHead{}}
	case ONNXDiagonalGaussian:
		onnx.Head = &pb.OnnxAgent_DiagonalGaussian{DiagonalGaussian: &pb.DiagonalGaussianHead{}}
	case ONNXSquashedGaussian:
		onnx.Head = &pb.OnnxAgent_SquashedGaussian{SquashedGaussian: &pb.SquashedGaussianHead{}}
	case ONNXActions:
		onnx.Head = &pb.OnnxAgent_Actions{Actions: &pb.ActionsHead{}}
	default:
		return nil, invalid("Head", "a head of ONNX models", fmt.Sprintf("%q", a.Head))
	}
	return wholeAgent(&pb.Agent{Kind: &pb.Agent_Onnx{Onnx: onnx}}), nil
}

func (a PythonAgent) agentUpdate() (*pb.AgentUpdate, error) {
	kwargs, err := encodeJSON("Kwargs", a.Kwargs)
	if err != nil {
		return nil, err
	}
	parameters, err := a.Parameters.message()
	if err != nil {
		return nil, err
	}
	python := &pb.PythonAgent{Name: a.Name, KwargsJson: kwargs, Parameters: parameters}
	if python.ActionMask, err = a.ActionMask.message(); err != nil {
		return nil, err
	}
	return wholeAgent(&pb.Agent{Kind: &pb.Agent_Python{Python: python}}), nil
}

func wholeAgent(agent *pb.Agent) *pb.AgentUpdate {
	return &pb.AgentUpdate{Update: &pb.AgentUpdate_Agent{Agent: agent}}
}

func (p Parameters) message() (*pb.Parameters, error) {
	tensors, err := encodeNamed("parameters", p)
	return &pb.Parameters{Tensors: tensors}, err
}

// encodeNamed returns named arrays as messages that share their memory, in ascending order of their names, so that the
// same arrays have the same bytes.
func encodeNamed(field string, arrays map[string]Array) ([]*pb.NamedTensor, error) {
	tensors := make([]*pb.NamedTensor, 0, len(arrays))
	for name, array := range arrays {
		tensor, err := encodeArray(fmt.Sprintf("%s['%s']", field, name), array)
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, &pb.NamedTensor{Name: name, Tensor: tensor})
	}
	sort.Slice(tensors, func(i, j int) bool { return tensors[i].Name < tensors[j].Name })
	return tensors, nil
}

func encodeArray(field string, array Array) (*pb.Tensor, error) {
	size := array.DataType.Size()
	if size == 0 {
		return nil, invalid(field, "an array that NewArray or Scalar has made", array)
	}
	shape := make([]int64, len(array.Shape))
	for i, length := range array.Shape {
		if length < 0 {
			return nil, invalid(field+".shape", "sizes of at least 0", array.Shape)
		}
		shape[i] = int64(length)
	}
	if array.Size()*size != len(array.data) {
		expected := fmt.Sprintf("a shape for %d elements", len(array.data)/size)
		return nil, invalid(field+".shape", expected, array.Shape)
	}
	return &pb.Tensor{DataType: dataTypes[array.DataType], Shape: shape, Data: inLittleEndian(array.data, size)}, nil
}

// encodeJSON returns a JSON object, or an empty text for none.
func encodeJSON(field string, object map[string]any) (string, error) {
	if len(object) == 0 {
		return "", nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		return "", invalid(field, "values that JSON can hold", err)
	}
	return string(text), nil
}
