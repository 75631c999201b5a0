"""A small vision transformer under the HF Trainer; the one line is `callbacks=`."""

from transformers import (
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

from tersify.integrations.hf import TersifyCallback
from tersify.lab import dataset, normalize

set_seed(0)
digits = dataset("digits")
images = normalize(digits.train.images, digits)
pairs = zip(images, digits.train.labels.tolist(), strict=True)
samples = [{"pixel_values": image, "labels": label} for image, label in pairs]
image = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
size = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
config = ViTConfig(num_hidden_layers=2, **size, **image)
model = ViTForImageClassification(config)
steps = {"num_train_epochs": 12, "per_device_train_batch_size": 32}
args = TrainingArguments("runs/hf", learning_rate=2e-3, report_to=[], **steps)
callback = TersifyCallback("ternary-target", sparsity=0.7, out="vit.terse")
Trainer(model, args, train_dataset=samples, callbacks=[callback]).train()
