"""Programs as web pages: a folder that any static host serves, in which a model runs on the visitor's GPU.

from ptegpu.site import make_site

make_site("model.pte", "site")
"""

from .pages import PAGES, Page
from .serve import SiteServer
from .site import VARIANTS, Site, make_site

__all__ = ["PAGES", "VARIANTS", "Page", "Site", "SiteServer", "make_site"]
