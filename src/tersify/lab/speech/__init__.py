"""Speech enhancement: the lookup-table paper's network, its data, its training and its
measures.
"""

from tersify.lab.networks.speech import SpeechMlp
from tersify.lab.speech.enhance import enhance
from tersify.lab.speech.mixtures import Corpus, Mixture, mix, snr_db
from tersify.lab.speech.spectrum import RATE, Framing, istft, stft
from tersify.lab.speech.training import SpeechTraining, train

__all__ = [
    "RATE",
    "Corpus",
    "Framing",
    "Mixture",
    "SpeechMlp",
    "SpeechTraining",
    "enhance",
    "istft",
    "mix",
    "snr_db",
    "stft",
    "train",
]
