package rollserve

import pb "github.com/rollserve/rollserve/client/go/rollservev1"

// Transform is a change of what passes between an agent and the rows of its environment, such as ClipRewards. The
// comments of the messages of the same names in the protos say more.
//
// Leaves are names of leaves of the observation space; without them, a transform applies to all Boxes.
type Transform interface {
	transform() *pb.Transform
}

// SignRewards leaves the signs of rewards: -1, 0 or 1.
type SignRewards struct{}

func (SignRewards) transform() *pb.Transform {
	return &pb.Transform{Kind: &pb.Transform_SignRewards{SignRewards: &pb.SignRewards{}}}
}

// ClipRewards moves rewards into bounds, of which at least one is set.
type ClipRewards struct {
	Low  *float64
	High *float64
}

func (t ClipRewards) transform() *pb.Transform {
	message := &pb.ClipRewards{Low: t.Low, High: t.High}
	return &pb.Transform{Kind: &pb.Transform_ClipRewards{ClipRewards: message}}
}

// ScaleRewards multiplies rewards by a factor, and adds an offset.
type ScaleRewards struct {
	Factor float64
	Offset float64
}

func (t ScaleRewards) transform() *pb.Transform {
	message := &pb.ScaleRewards{Factor: t.Factor, Offset: t.Offset}
	return &pb.Transform{Kind: &pb.Transform_ScaleRewards{ScaleRewards: message}}
}

// RescaleActions maps actions from Low, -1 by default, to High, 1 by default, to the bounds of the environment's Boxes.
type RescaleActions struct {
	Low  *float64
	High *float64
}

func (t RescaleActions) transform() *pb.Transform {
	message := &pb.RescaleActions{Low: t.Low, High: t.High}
	return &pb.Transform{Kind: &pb.Transform_RescaleActions{RescaleActions: message}}
}

// ClipActions moves actions into the bounds of the environment's Boxes.
type ClipActions struct{}

func (ClipActions) transform() *pb.Transform {
	return &pb.Transform{Kind: &pb.Transform_ClipActions{ClipActions: &pb.ClipActions{}}}
}

// CastObservations converts observations to another type.
type CastObservations struct {
	DataType DataType
	Leaves   []string
}

func (t CastObservations) transform() *pb.Transform {
	message := &pb.CastObservations{DataType: dataTypes[t.DataType], Leaves: t.Leaves}
	return &pb.Transform{Kind: &pb.Transform_CastObservations{CastObservations: message}}
}

// ScaleObservations multiplies observations by a factor, and adds an offset.
type ScaleObservations struct {
	Factor float64
	Offset float64
	Leaves []string
}

func (t ScaleObservations) transform() *pb.Transform {
	message := &pb.ScaleObservations{Factor: t.Factor, Offset: t.Offset, Leaves: t.Leaves}
	return &pb.Transform{Kind: &pb.Transform_ScaleObservations{ScaleObservations: message}}
}

// RescaleObservations maps the bounds of Boxes of floats to Low and High.
type RescaleObservations struct {
	Low    float64
	High   float64
	Leaves []string
}

func (t RescaleObservations) transform() *pb.Transform {
	message := &pb.RescaleObservations{Low: t.Low, High: t.High, Leaves: t.Leaves}
	return &pb.Transform{Kind: &pb.Transform_RescaleObservations{RescaleObservations: message}}
}

// CropObservations takes a rectangle of each image.
type CropObservations struct {
	Top           uint32
	Left          uint32
	Height        uint32
	Width         uint32
	ChannelsFirst bool
	Leaves        []string
}

func (t CropObservations) transform() *pb.Transform {
	message := &pb.CropObservations{
		Top: t.Top, Left: t.Left, Height: t.Height, Width: t.Width,
		ChannelsFirst: t.ChannelsFirst, Leaves: t.Leaves,
	}
	return &pb.Transform{Kind: &pb.Transform_CropObservations{CropObservations: message}}
}

// ResizeObservations makes images of another size.
type ResizeObservations struct {
	Height        uint32
	Width         uint32
	ChannelsFirst bool
	Leaves        []string
}

func (t ResizeObservations) transform() *pb.Transform {
	message := &pb.ResizeObservations{
		Height: t.Height, Width: t.Width, ChannelsFirst: t.ChannelsFirst,
		Leaves: t.Leaves,
	}
	return &pb.Transform{Kind: &pb.Transform_ResizeObservations{ResizeObservations: message}}
}

// GrayscaleObservations makes images in shades of grey.
type GrayscaleObservations struct {
	KeepChannel   bool
	ChannelsFirst bool
	Leaves        []string
}

func (t GrayscaleObservations) transform() *pb.Transform {
	message := &pb.GrayscaleObservations{
		KeepChannel: t.KeepChannel, ChannelsFirst: t.ChannelsFirst,
		Leaves: t.Leaves,
	}
	return &pb.Transform{Kind: &pb.Transform_GrayscaleObservations{GrayscaleObservations: message}}
}

// FlattenObservations makes one vector of all leaves, as gymnasium.spaces.flatten does, or with Leaves one of each.
type FlattenObservations struct {
	Leaves []string
}

func (t FlattenObservations) transform() *pb.Transform {
	message := &pb.FlattenObservations{Leaves: t.Leaves}
	return &pb.Transform{Kind: &pb.Transform_FlattenObservations{FlattenObservations: message}}
}

// decodeTransform returns the transform that a message describes; nil for a kind that this version does not know.
func decodeTransform(message *pb.Transform) Transform {
	switch kind := message.GetKind().(type) {
	case *pb.Transform_SignRewards:
		return SignRewards{}
	case *pb.Transform_ClipRewards:
		return ClipRewards{Low: kind.ClipRewards.Low, High: kind.ClipRewards.High}
	case *pb.Transform_ScaleRewards:
		return ScaleRewards{Factor: kind.ScaleRewards.GetFactor(), Offset: kind.ScaleRewards.GetOffset()}
	case *pb.Transform_RescaleActions:
		return RescaleActions{Low: kind.RescaleActions.Low, High: kind.RescaleActions.High}
	case *pb.Transform_ClipActions:
		return ClipActions{}
	case *pb.Transform_CastObservations:
		of := kind.CastObservations
		return CastObservations{DataType: nameOf(dataTypes, of.GetDataType()), Leaves: of.GetLeaves()}
	case *pb.Transform_ScaleObservations:
		of := kind.ScaleObservations
		return ScaleObservations{Factor: of.GetFactor(), Offset: of.GetOffset(), Leaves: of.GetLeaves()}
	case *pb.Transform_RescaleObservations:
		of := kind.RescaleObservations
		return RescaleObservations{Low: of.GetLow(), High: of.GetHigh(), Leaves: of.GetLeaves()}
	case *pb.Transform_CropObservations:
		of := kind.CropObservations
		return CropObservations{
			Top: of.GetTop(), Left: of.GetLeft(), Height: of.GetHeight(), Width: of.GetWidth(),
			ChannelsFirst: of.GetChannelsFirst(), Leaves: of.GetLeaves(),
		}
	case *pb.Transform_ResizeObservations:
		of := kind.ResizeObservations
		return ResizeObservations{
			Height: of.GetHeight(), Width: of.GetWidth(), ChannelsFirst: of.GetChannelsFirst(), Leaves: of.GetLeaves(),
		}
	case *pb.Transform_GrayscaleObservations:
		of := kind.GrayscaleObservations
		return GrayscaleObservations{
			KeepChannel: of.GetKeepChannel(), ChannelsFirst: of.GetChannelsFirst(), Leaves: of.GetLeaves(),
		}
	case *pb.Transform_FlattenObservations:
		return FlattenObservations{Leaves: kind.FlattenObservations.GetLeaves()}
	default:
		return nil
	}
}
