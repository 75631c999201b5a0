"""A small vision transformer under the HF Trainer; the one line is `callbacks=`."""

from transformers import (
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

import tersify
from tersify.integrations.hf import TersifyCallback
from tersify.lab import dataset, normalize

set_seed(0)
digits = dataset("digits")
images = normalize(digits.train.images, digits)
samples = [
    {"pixel_values": x, "labels": int(y)}
    for x, y in zip(images, digits.train.labels, strict=True)
]
config = ViTConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    image_size=8,
    patch_size=2,
    num_channels=1,
    num_labels=10,
)
args = TrainingArguments(
    "runs/hf",
    num_train_epochs=12,
    per_device_train_batch_size=32,
    learning_rate=2e-3,
    report_to=[],
)
callback = TersifyCallback("ternary-target", sparsity=0.7, out="vit.terse")
Trainer(
    ViTForImageClassification(config), args, train_dataset=samples, callbacks=[callback]
).train()

net = tersify.load("vit.terse", into=ViTForImageClassification(config)).eval()
found = net(normalize(digits.test.images, digits)).logits.argmax(1)
print(f"{100 * (found == digits.test.labels).float().mean():.1f} % right")
