// The gates of feed-forward networks.

// max(x, 0)² rather than x · sigmoid(x).
override RELU2: bool = false;

fn gate(x: f32) -> f32 {
    if (RELU2) {
        let positive = max(x, 0.0);
        return positive * positive;
    }
    return x / (1.0 + exp(-x));
}
