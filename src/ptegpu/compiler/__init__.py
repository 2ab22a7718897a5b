"""From a program to a bundle, without a device: `compile` is the entry point. (`ptegpu.compile` is that function.)"""
