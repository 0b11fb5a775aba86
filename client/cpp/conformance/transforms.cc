#include "transforms.h"

#include <map>
#include <string>
#include <vector>

namespace conformance {

namespace {

using rollserve::DataType;
using rollserve::Transform;

template <class T>
Transform empty(Fields&) {
  return T{};
}

template <class T>
Transform bounds(Fields& settings) {
  T transform;
  settings.read("low", transform.low);
  settings.read("high", transform.high);
  return transform;
}

template <class T>
Transform linear(Fields& settings, T transform = {}) {
  settings.read("factor", transform.factor);
  settings.read("offset", transform.offset);
  return transform;
}

Transform scale_observations(Fields& settings) {
  rollserve::ScaleObservations transform;
  settings.read("leaves", transform.leaves);
  return linear(settings, transform);
}

Transform scale_rewards(Fields& settings) { return linear<rollserve::ScaleRewards>(settings); }

Transform cast_observations(Fields& settings) {
  static const std::map<std::string, DataType> types = {{"DATA_TYPE_FLOAT32", DataType::Float32},
                                                        {"DATA_TYPE_FLOAT64", DataType::Float64}};
  const auto type = types.find(settings.take("data_type"));
  if (type == types.end()) throw Unsupported("no such data_type here");
  rollserve::CastObservations transform{type->second};
  settings.read("leaves", transform.leaves);
  return transform;
}

Transform rescale_observations(Fields& settings) {
  rollserve::RescaleObservations transform;
  settings.read("low", transform.low);
  settings.read("high", transform.high);
  settings.read("leaves", transform.leaves);
  return transform;
}

Transform crop_observations(Fields& settings) {
  rollserve::CropObservations transform;
  settings.read("top", transform.top);
  settings.read("left", transform.left);
  settings.read("height", transform.height);
  settings.read("width", transform.width);
  settings.read("channels_first", transform.channels_first);
  settings.read("leaves", transform.leaves);
  return transform;
}

Transform resize_observations(Fields& settings) {
  rollserve::ResizeObservations transform;
  settings.read("height", transform.height);
  settings.read("width", transform.width);
  settings.read("channels_first", transform.channels_first);
  settings.read("leaves", transform.leaves);
  return transform;
}

Transform grayscale_observations(Fields& settings) {
  rollserve::GrayscaleObservations transform;
  settings.read("keep_channel", transform.keep_channel);
  settings.read("channels_first", transform.channels_first);
  settings.read("leaves", transform.leaves);
  return transform;
}

}  // namespace

Transform transform_of(Fields transform) {
  static const std::map<std::string, Transform (*)(Fields&)> kinds = {
      {"sign_rewards", empty<rollserve::SignRewards>},
      {"clip_rewards", bounds<rollserve::ClipRewards>},
      {"scale_rewards", scale_rewards},
      {"rescale_actions", bounds<rollserve::RescaleActions>},
      {"clip_actions", empty<rollserve::ClipActions>},
      {"cast_observations", cast_observations},
      {"scale_observations", scale_observations},
      {"rescale_observations", rescale_observations},
      {"crop_observations", crop_observations},
      {"resize_observations", resize_observations},
      {"grayscale_observations", grayscale_observations},
      {"flatten_observations", empty<rollserve::FlattenObservations>}};
  for (const auto& [name, read] : kinds) {
    if (!transform.has(name.c_str())) continue;
    Fields settings(transform.take(name.c_str()));
    transform.finish();
    const Transform known = read(settings);
    settings.finish();
    return known;
  }
  transform.finish();
  throw Unsupported("no transform without a kind");
}

}  // namespace conformance
