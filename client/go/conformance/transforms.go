package main

import (
	"bytes"
	"encoding/json"
	"strings"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// transforms has readers of transforms by the names of their fields in the protos.
var transforms = map[string]func(json.RawMessage) (rollserve.Transform, error){
	"sign_rewards":           readTransform[rollserve.SignRewards],
	"clip_rewards":           readTransform[rollserve.ClipRewards],
	"scale_rewards":          readTransform[rollserve.ScaleRewards],
	"rescale_actions":        readTransform[rollserve.RescaleActions],
	"clip_actions":           readTransform[rollserve.ClipActions],
	"scale_observations":     readTransform[rollserve.ScaleObservations],
	"rescale_observations":   readTransform[rollserve.RescaleObservations],
	"crop_observations":      readTransform[rollserve.CropObservations],
	"resize_observations":    readTransform[rollserve.ResizeObservations],
	"grayscale_observations": readTransform[rollserve.GrayscaleObservations],
	"flatten_observations":   readTransform[rollserve.FlattenObservations],
	"cast_observations":      readCast,
}

// readTransform reads a transform whose fields have the names of the protos, apart from underscores.
func readTransform[T rollserve.Transform](content json.RawMessage) (rollserve.Transform, error) {
	var transform T
	content = bytes.ReplaceAll(content, []byte("channels_first"), []byte("channelsfirst"))
	content = bytes.ReplaceAll(content, []byte("keep_channel"), []byte("keepchannel"))
	err := decode(content, &transform)
	return transform, err
}

func readCast(content json.RawMessage) (rollserve.Transform, error) {
	var cast struct {
		DataType string `json:"data_type"`
		Leaves   []string
	}
	if err := decode(content, &cast); err != nil {
		return nil, err
	}
	dataType := rollserve.DataType(strings.ToLower(strings.TrimPrefix(cast.DataType, "DATA_TYPE_")))
	return rollserve.CastObservations{DataType: dataType, Leaves: cast.Leaves}, nil
}
