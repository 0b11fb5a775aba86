package rollserve

import (
	"fmt"
	"math"
	"math/rand"
	"strings"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Head is the meaning of the output of an MLPAgent.
type Head string

// The heads of MLPs.
const (
	// Categorical has the logits of a Discrete action.
	Categorical Head = "categorical"
	// DiagonalGaussian has the means of a Box's elements.
	DiagonalGaussian Head = "diagonal_gaussian"
	// SquashedGaussian has the means before tanh, which maps samples into the bounds of a Box.
	SquashedGaussian Head = "squashed_gaussian"
	// MultiCategorical has the logits of all elements of a MultiDiscrete action, one after the other.
	MultiCategorical Head = "multi_categorical"
	// Bernoulli has the logits of ones of a MultiBinary action.
	Bernoulli Head = "bernoulli"
	// EpsilonGreedy has Q-values of a Discrete action, of which the highest is taken, or a random one.
	EpsilonGreedy Head = "epsilon_greedy"
	// Boltzmann has Q-values of a Discrete action; divided by a temperature, they are logits.
	Boltzmann Head = "boltzmann"
)

// Activation is the function that an MLPAgent applies to each element of a hidden layer.
type Activation string

// The activations. GELU is exact, as in PyTorch; GELUTanh is JAX's approximation.
const (
	Tanh     Activation = "tanh"
	ReLU     Activation = "relu"
	ELU      Activation = "elu"
	GELU     Activation = "gelu"
	GELUTanh Activation = "gelu_tanh"
	SiLU     Activation = "silu"
)

var activations = map[Activation]pb.Activation{
	"":       pb.Activation_ACTIVATION_TANH,
	Tanh:     pb.Activation_ACTIVATION_TANH,
	ReLU:     pb.Activation_ACTIVATION_RELU,
	ELU:      pb.Activation_ACTIVATION_ELU,
	GELU:     pb.Activation_ACTIVATION_GELU,
	GELUTanh: pb.Activation_ACTIVATION_GELU_TANH,
	SiLU:     pb.Activation_ACTIVATION_SILU,
}

// MLPAgent is a multilayer perceptron with a distribution over actions at its end, evaluated in float32.
//
// Layer i is activation(norm(weight · input + bias)); the last layer has no norm and no activation. The input is the
// observation as gymnasium.spaces.flatten makes it. The names and shapes of the parameters say which layers and parts
// there are, as the comment on MlpAgent in the protos describes them: `0/weight` (outputs, inputs) and `0/bias`
// (outputs) and so on for each layer, `i/norm/weight` and `i/norm/bias` with layer norm, `value/weight` and
// `value/bias` for a value on the last hidden layer, `value/0/weight` and so on for a value network of its own,
// `log_std` for Gaussian heads that do not predict it, and `core/weight_ih` and so on for a recurrent core.
// With `observation/mean` and `observation/variance`, float64 (inputs), observations are normalized first.
type MLPAgent struct {
	// Parameters are float32 arrays, and float64 ones of the normalization.
	Parameters Parameters
	// Head is the meaning of the output.
	Head Head
	// Activation is that of the hidden layers; Tanh if it is not set.
	Activation Activation
	// LayerNormEpsilon is added to the variance by layer norm; 1e-5 if it is 0.
	LayerNormEpsilon float64
	// MinLogStd and MaxLogStd are the bounds that log_std of a Gaussian head is clipped to; nil for none.
	MinLogStd, MaxLogStd *float64
	// Epsilon is the probability of random actions of the head EpsilonGreedy.
	Epsilon float64
	// Temperature divides the Q-values of the head Boltzmann; nil for 1.
	Temperature *float64
	// NormalizationEpsilon is added to the variance where observations are normalized; 1e-8 if it is 0.
	NormalizationEpsilon float64
	// NormalizationClip is the bound of normalized observations; 10 if it is 0.
	NormalizationClip float64
	// ActionMask is the source of the action mask, for actions that are not a Box alone.
	ActionMask ActionMask
}

func (a MLPAgent) agentUpdate() (*pb.AgentUpdate, error) {
	mlp, err := a.message()
	if err != nil {
		return nil, err
	}
	return wholeAgent(&pb.Agent{Kind: &pb.Agent_Mlp{Mlp: mlp}}), nil
}

func (a MLPAgent) message() (*pb.MlpAgent, error) {
	parameters, err := a.Parameters.message()
	if err != nil {
		return nil, err
	}
	activation, err := numberOf("Activation", activations, a.Activation)
	if err != nil {
		return nil, err
	}
	mlp := &pb.MlpAgent{Activation: activation, Parameters: parameters}
	if err := a.setHead(mlp); err != nil {
		return nil, err
	}
	if err := a.setCore(mlp); err != nil {
		return nil, err
	}
	if err := a.setLayers(mlp); err != nil {
		return nil, err
	}
	if mlp.ActionMask, err = a.ActionMask.message(); err != nil {
		return nil, err
	}
	if _, normalizes := a.Parameters["observation/mean"]; normalizes {
		mlp.Normalization = &pb.ObservationNormalization{}
		if a.NormalizationEpsilon != 0 {
			mlp.Normalization.Epsilon = &a.NormalizationEpsilon
		}
		if a.NormalizationClip != 0 {
			mlp.Normalization.Clip = &a.NormalizationClip
		}
	}
	for name := range a.Parameters {
		if strings.HasSuffix(name, "/norm/weight") {
			mlp.LayerNorm = &pb.LayerNorm{}
			if a.LayerNormEpsilon != 0 {
				mlp.LayerNorm.Epsilon = &a.LayerNormEpsilon
			}
		}
	}
	return mlp, nil
}

func (a MLPAgent) setHead(mlp *pb.MlpAgent) error {
	_, hasLogStd := a.Parameters["log_std"]
	switch a.Head {
	case Categorical:
		mlp.Head = &pb.MlpAgent_Categorical{Categorical: &pb.CategoricalHead{}}
	case DiagonalGaussian:
		mlp.Head = &pb.MlpAgent_DiagonalGaussian{DiagonalGaussian: &pb.DiagonalGaussianHead{
			PredictedLogStd: !hasLogStd, MinLogStd: a.MinLogStd, MaxLogStd: a.MaxLogStd}}
	case SquashedGaussian:
		mlp.Head = &pb.MlpAgent_SquashedGaussian{SquashedGaussian: &pb.SquashedGaussianHead{
			PredictedLogStd: !hasLogStd, MinLogStd: a.MinLogStd, MaxLogStd: a.MaxLogStd}}
	case MultiCategorical:
		mlp.Head = &pb.MlpAgent_MultiCategorical{MultiCategorical: &pb.MultiCategoricalHead{}}
	case Bernoulli:
		mlp.Head = &pb.MlpAgent_Bernoulli{Bernoulli: &pb.BernoulliHead{}}
	case EpsilonGreedy:
		mlp.Head = &pb.MlpAgent_EpsilonGreedy{EpsilonGreedy: &pb.EpsilonGreedyHead{Epsilon: a.Epsilon}}
	case Boltzmann:
		mlp.Head = &pb.MlpAgent_Boltzmann{Boltzmann: &pb.BoltzmannHead{Temperature: a.Temperature}}
	default:
		return invalid("Head", "a head of MLPs", fmt.Sprintf("%q", a.Head))
	}
	isGaussian := a.Head == DiagonalGaussian || a.Head == SquashedGaussian
	switch {
	case !isGaussian && (a.MinLogStd != nil || a.MaxLogStd != nil):
		return invalid("MinLogStd", "no bounds of log_std for the head "+string(a.Head), "some")
	case a.Head != EpsilonGreedy && a.Epsilon != 0:
		return invalid("Epsilon", "none for the head "+string(a.Head), a.Epsilon)
	case a.Head != Boltzmann && a.Temperature != nil:
		return invalid("Temperature", "none for the head "+string(a.Head), *a.Temperature)
	}
	return nil
}

// setCore sets the recurrent core, whose kind follows from the shape of `core/weight_hh`.
func (a MLPAgent) setCore(mlp *pb.MlpAgent) error {
	hasCore := false
	for name := range a.Parameters {
		hasCore = hasCore || strings.HasPrefix(name, "core/")
	}
	if !hasCore {
		return nil
	}
	outputs, size, err := a.matrix("core/weight_hh")
	if err != nil {
		return err
	}
	switch outputs {
	case 3 * size:
		mlp.Core = &pb.MlpAgent_Gru{Gru: &pb.GruCore{Size: uint32(size)}}
	case 4 * size:
		mlp.Core = &pb.MlpAgent_Lstm{Lstm: &pb.LstmCore{Size: uint32(size)}}
	default:
		expected := "shape (3 H, H) of a GRU or (4 H, H) of an LSTM"
		return invalid("parameters['core/weight_hh']", expected, []int{outputs, size})
	}
	return nil
}

// setLayers sets the sizes of the layers and the source of the value, which follow from the weights.
func (a MLPAgent) setLayers(mlp *pb.MlpAgent) error {
	inputs, outputs, err := a.layers("")
	if err != nil {
		return err
	}
	if len(outputs) == 0 {
		return invalid("parameters", "a parameter '0/weight'", "none of that name")
	}
	if mlp.Core != nil && len(outputs) == 1 { // the only layer is behind the core
		if _, inputs, err = a.matrix("core/weight_ih"); err != nil {
			return err
		}
	}
	mlp.LayerSizes = append([]uint32{uint32(inputs)}, outputs...)
	_, value, err := a.layers("value/")
	if err != nil {
		return err
	}
	if len(value) > 0 {
		separate := &pb.SeparateValue{HiddenSizes: value[:len(value)-1]}
		mlp.Value = &pb.MlpAgent_SeparateValue{SeparateValue: separate}
	} else if _, hasValue := a.Parameters["value/weight"]; hasValue {
		mlp.Value = &pb.MlpAgent_SharedValue{SharedValue: &pb.SharedValue{}}
	}
	return nil
}

// layers returns the inputs of the first of consecutive layers, and the outputs of each.
func (a MLPAgent) layers(prefix string) (inputs int, outputs []uint32, err error) {
	for {
		name := fmt.Sprintf("%s%d/weight", prefix, len(outputs))
		if _, known := a.Parameters[name]; !known {
			return inputs, outputs, nil
		}
		rows, columns, err := a.matrix(name)
		if err != nil {
			return 0, nil, err
		}
		if len(outputs) == 0 {
			inputs = columns
		}
		outputs = append(outputs, uint32(rows))
	}
}

func (a MLPAgent) matrix(name string) (rows, columns int, err error) {
	array, known := a.Parameters[name]
	if !known {
		return 0, 0, invalid("parameters", fmt.Sprintf("a parameter '%s'", name), "none of that name")
	}
	if len(array.Shape) != 2 {
		return 0, 0, invalid(fmt.Sprintf("parameters['%s']", name), "two axes", array)
	}
	return array.Shape[0], array.Shape[1], nil
}

// InitialMLP returns an untrained agent for the spaces, as UpdateEnv and Status return them, with hidden layers of the
// given sizes: a start for training, or for a first try.
//
// Its head is Categorical, DiagonalGaussian, MultiCategorical or Bernoulli, whichever fits the action space. Weights
// are normal with variance 1 / inputs; the last layer's standard deviation is a hundredth of that, so that the first
// policy is close to uniform. Biases and log_std are 0.
func InitialMLP(observations, actions Space, hiddenSizes []int, random *rand.Rand) (MLPAgent, error) {
	head, outputs, err := headFor(actions)
	if err != nil {
		return MLPAgent{}, err
	}
	inputs, err := FlatSize(observations)
	if err != nil {
		return MLPAgent{}, err
	}
	parameters := Parameters{}
	for layer, size := range append(append([]int{}, hiddenSizes...), outputs) {
		if size < 1 {
			return MLPAgent{}, invalid(fmt.Sprintf("hiddenSizes[%d]", layer), "at least 1", size)
		}
		scale := 1 / math.Sqrt(float64(inputs))
		if layer == len(hiddenSizes) {
			scale /= 100
		}
		weight := make([]float32, size*inputs)
		for i := range weight {
			weight[i] = float32(scale * random.NormFloat64())
		}
		parameters[fmt.Sprintf("%d/weight", layer)] = NewArray(weight, size, inputs)
		parameters[fmt.Sprintf("%d/bias", layer)] = NewArray(make([]float32, size))
		inputs = size
	}
	if head == DiagonalGaussian {
		parameters["log_std"] = NewArray(make([]float32, outputs))
	}
	return MLPAgent{Parameters: parameters, Head: head}, nil
}

// headFor returns the usual head for an action space, and the size of its output.
func headFor(actions Space) (Head, int, error) {
	size, err := FlatSize(actions)
	if err != nil {
		return "", 0, err
	}
	switch space := actions.(type) {
	case DiscreteSpace:
		return Categorical, size, nil
	case MultiDiscreteSpace:
		return MultiCategorical, size, nil
	case MultiBinarySpace:
		return Bernoulli, size, nil
	case BoxSpace:
		if kindOf(space.DataType) == floating {
			return DiagonalGaussian, size, nil
		}
	}
	return "", 0, invalid("actions", "a Discrete, MultiDiscrete or MultiBinary space, or a Box of floats", actions)
}
