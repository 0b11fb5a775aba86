package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Space is a set of observations or actions, as gymnasium defines it: a BoxSpace, DiscreteSpace, MultiDiscreteSpace,
// MultiBinarySpace, TextSpace, DictSpace or TupleSpace. A kind of space that only later versions know is nil.
type Space interface{ isSpace() }

// BoxSpace is a space of arrays of one shape and type.
type BoxSpace struct {
	// DataType is the type of each element.
	DataType DataType
	// Shape is the shape of a value.
	Shape []int
	// Low has the least value of each element, inclusive: of the space's shape, or a scalar that all elements share.
	Low Array
	// High has the greatest value of each element, inclusive, in the same way.
	High Array
}

// DiscreteSpace is a space of the integers from Start to Start + N - 1. A value is an int64 without axes.
type DiscreteSpace struct {
	// N is the number of values.
	N int64
	// Start is the least value.
	Start int64
}

// MultiDiscreteSpace is a space of integer arrays whose elements each have a range of their own.
type MultiDiscreteSpace struct {
	// DataType is the type of each element.
	DataType DataType
	// N has the number of values of each element. Its shape is the shape of a value.
	N Array
	// Start has the least value of each element.
	Start Array
}

// MultiBinarySpace is a space of int8 arrays of zeros and ones.
type MultiBinarySpace struct {
	// Shape is the shape of a value.
	Shape []int
}

// TextSpace is a space of texts. A value has the Unicode code point of each character, then zeros: uint32 (MaxLength).
type TextSpace struct {
	// MaxLength is the greatest number of characters.
	MaxLength int
	// MinLength is the least number of characters.
	MinLength int
	// Characters are those that texts consist of, each once. Some environments show others.
	Characters string
}

// DictSpace has named subspaces, in the order of the environment's own space. Each leaf of a subspace is a column,
// named `key`, or `key/…` if the subspace has leaves of its own.
type DictSpace []NamedSpace

// NamedSpace is a subspace of a DictSpace.
type NamedSpace struct {
	// Name is the key.
	Name string
	// Space is the subspace.
	Space Space
}

// TupleSpace has numbered subspaces. Each leaf of a subspace is a column, named by the position, from `0`.
type TupleSpace []Space

func (BoxSpace) isSpace()           {}
func (DiscreteSpace) isSpace()      {}
func (MultiDiscreteSpace) isSpace() {}
func (MultiBinarySpace) isSpace()   {}
func (TextSpace) isSpace()          {}
func (DictSpace) isSpace()          {}
func (TupleSpace) isSpace()         {}

// FlatSize returns the size of a value after gymnasium.spaces.flatten, which is the input of an MLP. The error is an
// ErrInvalidArgument for a space, or a part of one, that no MLP takes: a TextSpace or nil.
func FlatSize(space Space) (int, error) {
	var subspaces []Space
	switch space := space.(type) {
	case BoxSpace:
		return product(space.Shape), nil
	case MultiBinarySpace:
		return product(space.Shape), nil
	case DiscreteSpace:
		return int(space.N), nil
	case MultiDiscreteSpace:
		size := 0
		for _, count := range numbers[int64](space.N) {
			size += int(count)
		}
		return size, nil
	case DictSpace:
		for _, named := range space {
			subspaces = append(subspaces, named.Space)
		}
	case TupleSpace:
		subspaces = space
	default:
		return 0, invalid("space", "a space whose values are numbers", fmt.Sprintf("%T", space))
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

// decodeSpace returns the space that a message describes; nil for a kind that this version does not know.
func decodeSpace(message *pb.Space) (Space, error) {
	switch kind := message.GetKind().(type) {
	case *pb.Space_Box:
		low, high, err := decodePair("low", kind.Box.GetLow(), "high", kind.Box.GetHigh())
		shape, dataType := sizesOf(kind.Box.GetShape()), nameOf(dataTypes, kind.Box.GetDataType())
		return BoxSpace{DataType: dataType, Shape: shape, Low: low, High: high}, err
	case *pb.Space_Discrete:
		return DiscreteSpace{N: kind.Discrete.GetN(), Start: kind.Discrete.GetStart()}, nil
	case *pb.Space_MultiDiscrete:
		counts, start, err := decodePair("nvec", kind.MultiDiscrete.GetNvec(), "start", kind.MultiDiscrete.GetStart())
		dataType := nameOf(dataTypes, kind.MultiDiscrete.GetDataType())
		return MultiDiscreteSpace{DataType: dataType, N: counts, Start: start}, err
	case *pb.Space_MultiBinary:
		return MultiBinarySpace{Shape: sizesOf(kind.MultiBinary.GetShape())}, nil
	case *pb.Space_Text:
		return TextSpace{
			MaxLength:  int(kind.Text.GetMaxLength()),
			MinLength:  int(kind.Text.GetMinLength()),
			Characters: kind.Text.GetCharacters(),
		}, nil
	case *pb.Space_Dict:
		space := make(DictSpace, len(kind.Dict.GetSpaces()))
		for i, named := range kind.Dict.GetSpaces() {
			part, err := decodeSpace(named.GetSpace())
			if err != nil {
				return nil, fmt.Errorf("spaces[%q].%w", named.GetName(), err)
			}
			space[i] = NamedSpace{Name: named.GetName(), Space: part}
		}
		return space, nil
	case *pb.Space_Tuple:
		space := make(TupleSpace, len(kind.Tuple.GetSpaces()))
		for i, message := range kind.Tuple.GetSpaces() {
			part, err := decodeSpace(message)
			if err != nil {
				return nil, fmt.Errorf("spaces[%d].%w", i, err)
			}
			space[i] = part
		}
		return space, nil
	default:
		return nil, nil
	}
}

// decodeSpaces returns the spaces of observations and actions of an answer.
func decodeSpaces(observations, actions *pb.Space) (observationSpace, actionSpace Space, err error) {
	if observationSpace, err = decodeSpace(observations); err != nil {
		return nil, nil, malformed(fmt.Errorf("observation_space.%w", err))
	}
	if actionSpace, err = decodeSpace(actions); err != nil {
		return nil, nil, malformed(fmt.Errorf("action_space.%w", err))
	}
	return observationSpace, actionSpace, nil
}

// decodePair returns two tensors of a space as arrays.
func decodePair(
	field string, tensor *pb.Tensor, otherField string, otherTensor *pb.Tensor,
) (array, other Array, err error) {
	if array, err = decodeTensor(tensor, false); err != nil {
		return array, other, fmt.Errorf("%s.%w", field, err)
	}
	if other, err = decodeTensor(otherTensor, false); err != nil {
		return array, other, fmt.Errorf("%s.%w", otherField, err)
	}
	return array, other, nil
}

func sizesOf(shape []int64) []int {
	sizes := make([]int, len(shape))
	for i, length := range shape {
		sizes[i] = int(length)
	}
	return sizes
}
